// Finds a few events among many by searching the text, without parsing the rest. No Python here.
//
// Finds the same events as DeviceSearch in distprof/ingest/kineto/framing.py. Nothing outside the
// text is read, and each search takes linear time for any text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace distprof {

/// A text to search for. It is not empty.
class Needle {
public:
    explicit Needle(std::string_view text) : text_(text) {
        std::memcpy(&head_, text.data(), std::min(text.size(), sizeof head_));
        if (text.size() < sizeof head_) mask_ = (std::uint64_t{1} << 8 * text.size()) - 1;
    }

    /// Where it begins in `text` at or after `from`, npos if it does not.
    ///
    /// Compares its first and last byte at 16 places at once, which match less often than one byte
    /// alone. This is several times faster than memmem.
    size_t find_in(std::string_view text, size_t from) const {
        const size_t last = text_.size() - 1;
        size_t at = from;
#if defined(__SSE2__)
        const __m128i first_byte = _mm_set1_epi8(text_.front());
        const __m128i last_byte = _mm_set1_epi8(text_.back());
        const auto load = [&](size_t place) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data() + place));
        };
        for (; text.size() >= 16 + last && at <= text.size() - 16 - last; at += 16) {
            const __m128i both = _mm_and_si128(_mm_cmpeq_epi8(load(at), first_byte),
                                               _mm_cmpeq_epi8(load(at + last), last_byte));
            auto places = static_cast<unsigned>(_mm_movemask_epi8(both));
            for (; places != 0; places &= places - 1) {
                const size_t place = at + static_cast<size_t>(__builtin_ctz(places));
                if (is_at(text, place)) return place;
            }
        }
#endif
        return text.find(text_, at);
    }

    /// The same, by its last byte: faster than `find_in` if that byte is rare in the text.
    size_t find_by_end(std::string_view text, size_t from) const {
        const size_t last = text_.size() - 1;
        for (size_t end = from + last; end < text.size(); ++end) {
            const void* const found = std::memchr(text.data() + end, text_.back(), text.size() - end);
            if (found == nullptr) break;
            end = static_cast<size_t>(static_cast<const char*>(found) - text.data());
            if (is_at(text, end - last)) return end - last;
        }
        return std::string_view::npos;
    }

    /// The last place where it begins, with its end at or before `until`; npos if there is none.
    size_t find_before(std::string_view text, size_t until) const {
        if (until < text_.size()) return std::string_view::npos;
        for (size_t place = until - text_.size() + 1; place-- > 0;)
            if (text[place] == text_.front() && is_at(text, place)) return place;
        return std::string_view::npos;
    }

    /// Whether it is at `place`, after which the text has enough bytes for it. Most candidates
    /// differ within the first eight bytes, which are compared as one number.
    bool is_at(std::string_view text, size_t place) const {
        if (text.size() - place >= sizeof head_) {
            std::uint64_t word;
            std::memcpy(&word, text.data() + place, sizeof word);
            if (((word ^ head_) & mask_) != 0) return false;
            if (text_.size() <= sizeof head_) return true;
        }
        return std::memcmp(text.data() + place, text_.data(), text_.size()) == 0;
    }

private:
    std::string_view text_;
    std::uint64_t head_ = 0;  // its first bytes
    std::uint64_t mask_ = ~std::uint64_t{0};
};

/// The patterns to search for, as declared by Boundary and DeviceSearch.
struct Search {
    std::string edge;                   // the text between two events
    size_t opening = 0;                 // where the next event begins in it
    std::string category;               // how the category of any event begins
    std::vector<std::string> on_device; // how it continues for a device row
    std::string step;                   // how the name of a step mark begins
};

/// Start and end of an event.
using Span = std::pair<size_t, size_t>;

struct Found {
    std::vector<Span> spans;  // ascending, of distinct events
    size_t num_device_rows = 0;
};

/// Finds events in `text`, which the closing bracket of an array ends.
class EventSearch {
public:
    EventSearch(std::string_view text, const Search& search)
        : text_(text), search_(search), edge_(search.edge) {}

    Found select() const {
        Found found;
        std::vector<Span> rows = device_rows();
        found.num_device_rows = rows.size();
        const std::vector<Span> steps = step_marks();
        found.spans.resize(rows.size() + steps.size());
        std::merge(rows.begin(), rows.end(), steps.begin(), steps.end(), found.spans.begin());
        found.spans.erase(std::unique(found.spans.begin(), found.spans.end()), found.spans.end());
        return found;
    }

    /// Bytes of the JSON array of these events.
    size_t size_of(const Found& found) const {
        size_t size = 2;
        for (const auto& [start, end] : found.spans) size += end - start + between().size();
        return found.spans.empty() ? size : size - between().size();
    }

    /// Write that array.
    void write(const Found& found, char* target) const {
        const auto put = [&target](std::string_view part) {
            std::memcpy(target, part.data(), part.size());
            target += part.size();
        };
        put("[");
        bool is_first = true;
        for (const auto& [start, end] : found.spans) {
            if (!is_first) put(between());
            put(text_.substr(start, end - start));
            is_first = false;
        }
        put("]");
    }

private:
    static constexpr size_t NOWHERE = std::string_view::npos;

    std::string_view between() const {
        return std::string_view(search_.edge).substr(1, search_.opening - 1);
    }

    std::vector<Span> device_rows() const {
        const Needle category(search_.category);
        std::vector<Span> spans;
        size_t hit = next_row(category, 0);
        while (hit != NOWHERE) {
            spans.push_back(event_around(hit));
            hit = next_row(category, spans.back().second);
        }
        return spans;
    }

    /// Where the category of the next device row begins, at or after `from`.
    ///
    /// Every event has a category. That of a device row differs in the byte after the common
    /// beginning, which is compared together with the first one, at 64 places at once.
    size_t next_row(const Needle& category, size_t from) const {
        const size_t size = search_.category.size();
        size_t at = from;
#if defined(__SSE2__)
        if (search_.on_device.size() == 2) {
            const __m128i first = _mm_set1_epi8(search_.category.front());
            const __m128i one = _mm_set1_epi8(search_.on_device[0].front());
            const __m128i other = _mm_set1_epi8(search_.on_device[1].front());
            const auto load = [&](size_t place) {
                return _mm_loadu_si128(reinterpret_cast<const __m128i*>(text_.data() + place));
            };
            const auto may_be = [&](size_t place) {
                const __m128i after = load(place + size);
                const __m128i is_either =
                    _mm_or_si128(_mm_cmpeq_epi8(after, one), _mm_cmpeq_epi8(after, other));
                return _mm_and_si128(_mm_cmpeq_epi8(load(place), first), is_either);
            };
            for (; text_.size() >= 64 + size && at <= text_.size() - 64 - size; at += 64) {
                const __m128i block[] = {may_be(at), may_be(at + 16), may_be(at + 32),
                                         may_be(at + 48)};
                const __m128i any = _mm_or_si128(_mm_or_si128(block[0], block[1]),
                                                 _mm_or_si128(block[2], block[3]));
                if (_mm_movemask_epi8(any) == 0) continue;
                std::uint64_t places = 0;
                for (size_t part = 4; part-- > 0;)
                    places = places << 16 | static_cast<unsigned>(_mm_movemask_epi8(block[part]));
                for (; places != 0; places &= places - 1) {
                    const size_t place = at + static_cast<size_t>(__builtin_ctzll(places));
                    if (category.is_at(text_, place) && is_on_device(text_.substr(place + size)))
                        return place;
                }
            }
        }
#endif
        for (; (at = category.find_in(text_, at)) != NOWHERE; at += size)
            if (is_on_device(text_.substr(at + size))) return at;
        return NOWHERE;
    }

    bool is_on_device(std::string_view rest) const {
        for (const std::string& word : search_.on_device)
            if (rest.substr(0, word.size()) == word) return true;
        return false;
    }

    /// Events that contain a step mark. A second mark in an event gives the same event again.
    std::vector<Span> step_marks() const {
        const Needle step(search_.step);
        std::vector<Span> spans;
        size_t hit = step.find_by_end(text_, 0);
        while (hit != NOWHERE) {
            const size_t place = hit + search_.step.size() - 1;
            spans.push_back(event_around(place));
            hit = step.find_by_end(text_, std::max(spans.back().second, place + 1));
        }
        return spans;
    }

    /// Start and end of the event between the last edge before `place` and the first one at or
    /// after it.
    Span event_around(size_t place) const {
        const size_t before = edge_.find_before(text_, place);
        const size_t behind = edge_.find_in(text_, place);
        const size_t start = before == NOWHERE ? 1 : before + search_.opening;
        const size_t end = behind == NOWHERE ? text_.size() - 1 : behind + 1;
        return {start, std::max(start, end)};  // a text of one byte has no inside
    }

    std::string_view text_;
    const Search& search_;
    Needle edge_;
};

}  // namespace distprof
