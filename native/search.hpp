// A few events found among many by searching the text, without parsing the rest. No Python here.
//
// Does what DeviceSearch in distprof/ingest/kineto/device.py does, hit for hit. Nothing outside the
// text is read, and each search is linear in it whatever it holds.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace distprof {

/// Where `needle` begins at or after `from`, npos if it does not. The needle is not empty.
///
/// Its first and last byte are compared at 16 places at once: rarer than one byte alone, and
/// several times faster than memmem.
inline size_t find_text(std::string_view text, std::string_view needle, size_t from) {
    const size_t last = needle.size() - 1;
    size_t at = from;
#if defined(__SSE2__)
    const __m128i first_byte = _mm_set1_epi8(needle.front());
    const __m128i last_byte = _mm_set1_epi8(needle.back());
    const auto load = [&](size_t place) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data() + place));
    };
    for (; text.size() >= 16 + last && at <= text.size() - 16 - last; at += 16) {
        const __m128i both = _mm_and_si128(_mm_cmpeq_epi8(load(at), first_byte),
                                           _mm_cmpeq_epi8(load(at + last), last_byte));
        auto places = static_cast<unsigned>(_mm_movemask_epi8(both));
        for (; places != 0; places &= places - 1) {
            const size_t place = at + static_cast<size_t>(__builtin_ctz(places));
            if (std::memcmp(text.data() + place, needle.data(), needle.size()) == 0) return place;
        }
    }
#endif
    return text.find(needle, at);
}

/// What to look for, as Boundary and DeviceSearch declare it.
struct Search {
    std::string edge;                   // what stands between two events
    size_t opening = 0;                 // where the next event begins in it
    std::string category;               // how the category of any event begins
    std::vector<std::string> on_device; // how it goes on for a device row
    std::string step;                   // how the name of a step mark begins
};

struct Found {
    std::string array;  // the events as a JSON array
    size_t num_device_rows = 0;
};

/// Finds events in `text`, which the closing bracket of an array ends.
class EventSearch {
public:
    EventSearch(std::string_view text, const Search& search) : text_(text), search_(search) {}

    Found select() {
        std::vector<Span> spans = device_rows();
        Found found;
        found.num_device_rows = spans.size();
        const std::vector<Span> steps = step_marks();
        spans.insert(spans.end(), steps.begin(), steps.end());
        std::sort(spans.begin(), spans.end());
        spans.erase(std::unique(spans.begin(), spans.end()), spans.end());
        found.array = joined(spans);
        return found;
    }

private:
    using Span = std::pair<size_t, size_t>;

    static constexpr size_t NOWHERE = std::string_view::npos;

    std::vector<Span> device_rows() const {
        std::vector<Span> spans;
        size_t hit = find_text(text_, search_.category, 0);
        while (hit != NOWHERE) {
            const size_t after = hit + search_.category.size();
            size_t next = after;
            if (is_on_device(text_.substr(after))) {
                spans.push_back(event_around(hit, hit));
                next = spans.back().second;
            }
            hit = find_text(text_, search_.category, next);
        }
        return spans;
    }

    bool is_on_device(std::string_view rest) const {
        for (const std::string& word : search_.on_device)
            if (rest.substr(0, word.size()) == word) return true;
        return false;
    }

    /// Events that a step mark is in. Marks after the first in an event give the same event again.
    std::vector<Span> step_marks() const {
        std::vector<Span> spans;
        size_t hit = find_text(text_, search_.step, 0);
        while (hit != NOWHERE) {
            const size_t place = hit + search_.step.size() - 1;
            spans.push_back(event_around(place, place));
            hit = find_text(text_, search_.step, std::max(spans.back().second, place + 1));
        }
        return spans;
    }

    /// Start and end of the event between the last edge before `low` and the first from `high` on.
    Span event_around(size_t low, size_t high) const {
        const std::string& edge = search_.edge;
        const size_t before =
            low < edge.size() ? NOWHERE : text_.rfind(edge, low - edge.size());
        const size_t behind = find_text(text_, edge, high);
        return {before == NOWHERE ? 1 : before + search_.opening,
                behind == NOWHERE ? text_.size() - 1 : behind + 1};
    }

    std::string joined(const std::vector<Span>& spans) const {
        const std::string_view between =
            std::string_view(search_.edge).substr(1, search_.opening - 1);
        std::string array = "[";
        for (const auto& [start, end] : spans) {
            if (array.size() > 1) array += between;
            array += text_.substr(start, end - start);
        }
        array += "]";
        return array;
    }

    std::string_view text_;
    const Search& search_;
};

}  // namespace distprof
