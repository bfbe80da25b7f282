// Converts one chunk of a Kineto trace, a JSON array of events, to columns. Plain C++17, no Python.
//
// Contract
// --------
// - `TraceReader::read` returns exactly the result of distprof/ingest/kineto/decode.py for the same
//   bytes, to the last nanosecond and in the same order, or it throws `Declined`: then that Python
//   code reads the chunk. Declining is always allowed, so everything unusual is declined.
// - The text is untrusted. It is verified to be one JSON array of objects up to its last byte: a
//   chunk that was cut in the wrong place never passes. Nothing outside [begin, end) is read.
// - A `TraceReader` reads the chunks of one trace, one after the other. Different ones share only
//   `Settings`, which are constant: any number of threads may read traces at once.
// - Its dictionaries grow from chunk to chunk, and forget all texts when they are large, so memory
//   is bounded. Names of threads in the result are views of the chunk, which must outlive it.
//
// Python declares once, in `Settings`, which columns are kept and what the words of a trace mean.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// Whether eight bytes can be processed as one number.
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define DISTPROF_WORDS 1
#else
#define DISTPROF_WORDS 0
#endif

namespace distprof {

using std::size_t;
using std::string_view;

/// An integer that is missing from the trace.
constexpr std::int64_t ABSENT = -1;

/// How an unsigned writer prints stream -1.
constexpr std::int64_t NO_STREAM = 4294967295;

/// Thrown if the Python code has to read the chunk.
struct Declined {};

#if defined(__GNUC__)
#define DISTPROF_RARE __attribute__((cold, noinline))
#define DISTPROF_INLINE inline __attribute__((always_inline))
#else
#define DISTPROF_RARE
#define DISTPROF_INLINE inline
#endif

[[noreturn]] DISTPROF_RARE inline void decline() { throw Declined{}; }

DISTPROF_INLINE void require(bool usual) {
    if (!usual) decline();
}

// Dictionaries ------------------------------------------------------------------------------------

inline std::uint64_t word_at(const char* from) {
    std::uint64_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

/// All bytes of a text of less than eight.
inline std::uint64_t short_word(string_view text) {
    std::uint64_t word = 0;
    for (const char byte : text) word = word << 8 | static_cast<unsigned char>(byte);
    return word;
}

/// Whether two texts of the same size are the same.
inline bool are_same(const char* one, const char* other, size_t size) {
    if (size < 8 || size >= 64) return size == 0 || std::memcmp(one, other, size) == 0;
    for (size_t n = 0; n + 8 < size; n += 8)  // quicker than a call
        if (word_at(one + n) != word_at(other + n)) return false;
    return word_at(one + size - 8) == word_at(other + size - 8);
}

/// The two halves of a product, combined.
inline std::uint64_t folded(std::uint64_t one, std::uint64_t other) {
    const auto product = static_cast<unsigned __int128>(one) * other;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

/// Hash of a text. The seed differs between processes, so nobody can craft a trace with collisions.
inline std::uint64_t hash_of(string_view text, std::uint64_t seed) {
    constexpr std::uint64_t odd = 0x9E3779B97F4A7C15u;
    std::uint64_t hash = (seed ^ text.size()) * odd;
    const char* at = text.data();
    size_t left = text.size();
    for (; left > 16; at += 16, left -= 16) hash = folded(word_at(at) ^ seed, word_at(at + 8) ^ hash);
    // The last words may overlap those before: copying a varying number of bytes is slow.
    if (text.size() >= 16) at -= 16 - left, left = 16;
    const std::uint64_t first = left >= 8 ? word_at(at) : short_word({at, left});
    const std::uint64_t last = left >= 8 ? word_at(at + left - 8) : 0;
    hash = folded(first ^ seed, last ^ hash);
    return hash ^ (hash >> 32);
}

/// Codes of texts, assigned in order of first appearance. It holds copies of the texts.
class Dictionary {
public:
    explicit Dictionary(std::uint64_t seed) : seed_(seed), slots_(256, 0) {}

    /// The code of `text`, and whether it is new.
    std::pair<std::int32_t, bool> enter(string_view text) {
        return enter_new(
            hash_of(text, seed_), text.size(),
            [text](const char* known) { return are_same(known, text.data(), text.size()); },
            [text] { return std::string(text); });
    }

    std::int32_t code_of(string_view text) { return enter(text).first; }

    /// The code of a JSON list of values. Its text is put together only if it is new.
    template <size_t N>
    std::int32_t code_of_list(const std::array<string_view, N>& values) {
        std::uint64_t hash = seed_;
        size_t size = 1;
        for (const string_view value : values) {
            hash = hash_of(value, hash);
            size += value.size() + 1;
        }
        const auto is_same = [&values](const char* known) {
            for (const string_view value : values) {
                if (!are_same(known + 1, value.data(), value.size())) return false;
                known += value.size() + 1;
            }
            return true;
        };
        const auto joined = [&values] {
            std::string list;
            for (const string_view value : values) list.append(1, list.empty() ? '[' : ',').append(value);
            return list.append(1, ']');
        };
        return enter_new(hash, size, is_same, joined).first;
    }

    const std::vector<string_view>& texts() const { return texts_; }

    /// All texts are old ones from now on.
    void begin_chunk() { num_old_ = texts_.size(); }

    /// How many texts it had before the present chunk.
    size_t num_old() const { return num_old_; }

    /// Whether it needs much memory.
    bool is_large() const { return texts_.size() >= MANY_TEXTS || num_bytes_ >= MANY_BYTES; }

    void clear() {
        if (texts_.empty()) return;
        *this = Dictionary(seed_);
    }

private:
    template <typename IsSame, typename Make>
    std::pair<std::int32_t, bool> enter_new(std::uint64_t hash, size_t size, IsSame is_same, Make make) {
        size_t slot = find(hash, size, is_same);
        if (slots_[slot] != 0) return {static_cast<std::int32_t>(slots_[slot] - 1), false};
        if (2 * texts_.size() >= slots_.size()) {
            grow();
            slot = find(hash, size, is_same);
        }
        texts_.push_back(copies_.emplace_back(make()));
        num_bytes_ += size;
        hashes_.push_back(hash);
        slots_[slot] = static_cast<std::uint32_t>(texts_.size());
        return {static_cast<std::int32_t>(texts_.size() - 1), true};
    }

    /// The slot that holds the text, or the empty slot for it.
    template <typename IsSame>
    size_t find(std::uint64_t hash, size_t size, IsSame is_same) const {
        size_t slot = hash & (slots_.size() - 1);
        while (slots_[slot] != 0) {
            const size_t code = slots_[slot] - 1;
            const string_view known = texts_[code];
            if (hashes_[code] == hash && known.size() == size && is_same(known.data())) break;
            slot = (slot + 1) & (slots_.size() - 1);
        }
        return slot;
    }

    void grow() {
        std::vector<std::uint32_t> larger(2 * slots_.size(), 0);
        for (size_t code = 0; code < hashes_.size(); ++code) {
            size_t slot = hashes_[code] & (larger.size() - 1);
            while (larger[slot] != 0) slot = (slot + 1) & (larger.size() - 1);
            larger[slot] = static_cast<std::uint32_t>(code + 1);
        }
        slots_.swap(larger);
    }

    // The largest traces have about ten thousand names.
    static constexpr size_t MANY_TEXTS = 1u << 15;
    static constexpr size_t MANY_BYTES = 4u << 20;

    std::uint64_t seed_;
    size_t num_bytes_ = 0;
    size_t num_old_ = 0;
    std::vector<std::uint32_t> slots_;  // code + 1, 0 for an empty slot; a power of two of them
    std::vector<std::uint64_t> hashes_;
    std::vector<string_view> texts_;
    std::deque<std::string> copies_;  // a deque never moves its elements
};

// Settings ----------------------------------------------------------------------------------------

/// Kinds of rows by category. Any other value is the ActivityKind of a device row.
constexpr std::int8_t HOST = -1;
constexpr std::int8_t DROPPED = -2;

/// Arguments that tables need from every event, in this order, before those of collectives.
enum Argument : size_t {
    NAME,
    STREAM,
    CORRELATION,
    DEVICE,
    BYTES,
    GRID,
    COLLECTIVE,
    SEQUENCE,
    INPUT_DIMS,
    OLD_INPUT_DIMS,  // before PyTorch 1.11
    INPUT_TYPES,
    CONCRETE_INPUTS,
    NUM_ALWAYS
};

constexpr size_t MOST_ARGUMENTS = 64;  // one bit each

inline bool begins_with(string_view text, const std::string& prefix) {
    return text.size() >= prefix.size() && std::memcmp(text.data(), prefix.data(), prefix.size()) == 0;
}

/// A column of a collective's arguments: its possible keys, the preferred one first.
struct CommColumn {
    size_t first;
    size_t other;  // the same as `first` if there is only one key
};

struct Settings {
    std::uint64_t seed = 0;
    std::vector<std::pair<std::string, std::int8_t>> categories;  // word in the trace, and its kind
    std::string module_prefix;  // of Python frames that are kept
    std::string step_prefix;
    std::set<std::string, std::less<>> without_inputs;  // names of operators whose inputs are not needed
    std::vector<std::string> comm_prefixes;  // of host rows that are communication
    std::string skipped_phases;
    std::vector<std::string> arguments;  // keys; the first are those of `Argument`
    std::vector<CommColumn> comm_integers;
    std::vector<CommColumn> comm_texts;
    std::int64_t longest_ns = 0;
    std::int64_t largest_ns = 0;
    std::int64_t exact_below_us = 0;

    /// Build the hash table of `argument_of`. Call it once `arguments` is filled.
    void index_arguments() {
        for (size_t number = 0; number < arguments.size(); ++number) {
            size_t slot = slot_of(arguments[number]);
            while (slots_[slot].number != MOST_ARGUMENTS) slot = (slot + 1) % slots_.size();
            slots_[slot] = {arguments[number], number};
        }
    }

    /// The number of a key among `arguments`, MOST_ARGUMENTS for any other.
    size_t argument_of(string_view key) const {
        size_t slot = slot_of(key);
        while (slots_[slot].number != MOST_ARGUMENTS && slots_[slot].key != key)
            slot = (slot + 1) % slots_.size();
        return slots_[slot].number;
    }

    std::int8_t kind_of(string_view category) const {
        for (const auto& [word, kind] : categories)
            if (word == category) return kind;
        return HOST;
    }

    bool is_communication(string_view name) const {
        for (const std::string& prefix : comm_prefixes)
            if (begins_with(name, prefix)) return true;
        return false;
    }

    bool is_module(string_view name) const {
        return begins_with(name, module_prefix);
    }

    bool has_inputs(string_view name) const {
        return without_inputs.find(name) == without_inputs.end();
    }

    bool is_step(string_view name) const {
        return begins_with(name, step_prefix);
    }

private:
    struct Slot {
        string_view key;
        size_t number = MOST_ARGUMENTS;
    };

    static size_t slot_of(string_view key) {
        if (key.empty()) return 0;
        const auto first = static_cast<unsigned char>(key.front());
        const auto last = static_cast<unsigned char>(key.back());
        return (key.size() * 37u + first * 5u + last * 11u) % 512u;
    }

    std::array<Slot, 512> slots_{};
};

// Values as they appear in the text ---------------------------------------------------------------

enum class Kind : std::uint8_t { String, Number, Null, Boolean, Array, Object };

/// A number whose grammar was checked. The mantissa is right up to 19 digits.
struct Number {
    std::uint64_t mantissa = 0;
    std::uint32_t digits = 0;
    std::uint32_t decimals = 0;
    bool negative = false;
    bool has_point = false;
    bool has_exponent = false;
};

struct Value {
    Kind kind = Kind::Null;
    bool escaped = false;  // a string with a backslash
    bool ascii = true;
    string_view raw;   // all of the text, quotes included
    Number number;

    /// The content of a string, between its quotes.
    string_view text() const { return raw.substr(1, raw.size() - 2); }
};

/// Whether bytes are UTF-8 as Python decodes it: nothing overlong, no surrogates.
inline bool is_utf8(string_view text) {
    const auto* at = reinterpret_cast<const unsigned char*>(text.data());
    const auto* const end = at + text.size();
    const auto follows = [&](int count) {
        for (int n = 1; n <= count; ++n)
            if (end - at <= n || (at[n] & 0xC0) != 0x80) return false;
        return true;
    };
    while (at < end) {
        const unsigned char lead = *at;
        if (lead < 0x80) {
            ++at;
        } else if (lead >= 0xC2 && lead <= 0xDF) {
            if (!follows(1)) return false;
            at += 2;
        } else if (lead >= 0xE0 && lead <= 0xEF) {
            if (!follows(2)) return false;
            if (lead == 0xE0 && at[1] < 0xA0) return false;
            if (lead == 0xED && at[1] >= 0xA0) return false;
            at += 3;
        } else if (lead >= 0xF0 && lead <= 0xF4) {
            if (!follows(3)) return false;
            if (lead == 0xF0 && at[1] < 0x90) return false;
            if (lead == 0xF4 && at[1] >= 0x90) return false;
            at += 4;
        } else {
            return false;
        }
    }
    return true;
}

inline bool is_ascii(string_view text) {
    unsigned char any = 0;
    for (const char byte : text) any = static_cast<unsigned char>(any | static_cast<unsigned char>(byte));
    return any < 0x80;
}

/// Walks JSON text. Every function stops after the text that it read, or declines.
class Scanner {
public:
    Scanner(const char* begin, const char* end) : at_(begin), end_(end) {}

    const char* place() const { return at_; }
    bool is_done() const { return at_ == end_; }

    /// Numbers with an exponent or too many digits so far, whose value may not be readable.
    std::uint64_t num_odd_numbers() const { return num_odd_numbers_; }

    /// Skip white space. Usually there is none, or a single space after a colon.
    DISTPROF_INLINE void skip_space() {
        if (end_ - at_ >= 2) {
            if (static_cast<unsigned char>(at_[0]) > ' ') return;
            if (at_[0] == ' ' && static_cast<unsigned char>(at_[1]) > ' ') {
                ++at_;
                return;
            }
        }
        skip_some_space();
    }

    /// The same after `passes`: there may be more than in the known text.
    DISTPROF_INLINE void skip_more_space() {
        if (static_cast<unsigned char>(*at_) <= ' ') skip_space();
    }

    char peek() const {
        require(at_ < end_);
        return *at_;
    }

    void expect(char wanted) {
        require(at_ < end_ && *at_ == wanted);
        ++at_;
    }

    /// After an opening bracket or an element: whether another element follows. Consumes the comma
    /// or the closing bracket.
    DISTPROF_INLINE bool has_another(char closing, bool is_first) {
        skip_space();
        if (peek() == closing) {
            ++at_;
            return false;
        }
        if (!is_first) {
            expect(',');
            skip_space();
        }
        return true;
    }

    /// A key and its colon. Keys with escapes or beyond ASCII are unusual.
    DISTPROF_INLINE string_view read_key() {
        expect('"');
        const char* const begin = at_;
        const bool high = pass_plain_text();
        const string_view key(begin, static_cast<size_t>(at_ - begin));
        require(!high);
        expect('"');
        pass_colon();
        return key;
    }

    /// Pass a text of known bytes, if it comes next.
    ///
    /// @param text  Its bytes, and any others up to `KNOWN` of them.
    /// @param mask  A bit for each byte of it, the first one lowest.
    DISTPROF_INLINE bool passes(const char* text, std::uint64_t mask, size_t size) {
        if (end_ - at_ < static_cast<std::ptrdiff_t>(KNOWN)) return false;
#if defined(__SSE2__)
        if ((~same_as(text) & static_cast<std::uint32_t>(mask)) != 0) return false;
        if (size > 32) {
            at_ += 32;
            const bool differs = (~same_as(text + 32) & static_cast<std::uint32_t>(mask >> 32)) != 0;
            at_ -= 32;
            if (differs) return false;
        }
#else
        static_cast<void>(mask);
        if (std::memcmp(at_, text, size) != 0) return false;
#endif
        at_ += size;
        return true;
    }

    /// The longest text that `passes` compares.
    static constexpr size_t KNOWN = 64;

    DISTPROF_INLINE void pass_colon() {
        skip_space();
        expect(':');
        skip_space();
    }

    DISTPROF_INLINE void read_string(Value& value) {
        value.kind = Kind::String;
        const char* const begin = at_;
        const unsigned met = pass_string();
        value.escaped = (met & ESCAPE) != 0;
        value.ascii = (met & HIGH) == 0;
        value.raw = string_view(begin, static_cast<size_t>(at_ - begin));
    }

    /// Go to the end of a string. Returns flags of what it contains.
    DISTPROF_INLINE unsigned pass_string() {
        expect('"');
        unsigned met = pass_plain_text() ? HIGH : 0;
        if (at_ < end_ && *at_ == '"')
            ++at_;
        else
            met |= pass_escaped_text();
        return met;
    }

    Value read_value(int depth) {
        Value value;
        read_value(depth, value);
        return value;
    }

    /// The same, into an existing value: copying it would be slow.
    void read_value(int depth, Value& value) {
        const char first = peek();
        const char* const begin = at_;
        if (first == '"') {
            read_string(value);
            return;
        }
        if (first == '{' || first == '[') {
            value.kind = first == '{' ? Kind::Object : Kind::Array;
            skip_composite(depth);
        } else if (first == 'n') {
            value.kind = Kind::Null;
            pass_word("null");
        } else if (first == 't' || first == 'f') {
            value.kind = Kind::Boolean;
            pass_word(first == 't' ? "true" : "false");
        } else {
            value.kind = Kind::Number;
            read_number(value.number);
        }
        value.raw = string_view(begin, static_cast<size_t>(at_ - begin));
    }

    /// Pass a value, if it has the same bytes as an earlier one of this text.
    ///
    /// @param earlier  The value, not a number whose value may not be readable.
    DISTPROF_INLINE bool passes_again(const Value& earlier) {
#if defined(__SSE2__)
        const size_t size = earlier.raw.size();
        if (size - 1 >= 16 || end_ - at_ < 17) return false;
        const auto load = [](const char* from) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        };
        const auto same = static_cast<unsigned>(
            _mm_movemask_epi8(_mm_cmpeq_epi8(load(at_), load(earlier.raw.data()))));
        if ((~same & ((1u << size) - 1)) != 0) return false;
        if (earlier.kind == Kind::Number && is_of_number(at_[size])) return false;
        at_ += size;
        return true;
#else
        static_cast<void>(earlier);
        return false;
#endif
    }

    DISTPROF_INLINE void skip_value(int depth) {
        if (peek() == '"')
            pass_string();
        else if (!passes_short_integer())
            skip_other(depth);
    }

private:
#if defined(__SSE2__)
    /// A bit for each of the next 32 bytes that is the same in `text`.
    DISTPROF_INLINE std::uint32_t same_as(const char* text) const {
        const auto load = [](const char* from) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        };
        const auto first = _mm_movemask_epi8(_mm_cmpeq_epi8(load(at_), load(text)));
        const auto second = _mm_movemask_epi8(_mm_cmpeq_epi8(load(at_ + 16), load(text + 16)));
        return static_cast<std::uint32_t>(first) | static_cast<std::uint32_t>(second) << 16;
    }
#endif

    static constexpr unsigned ESCAPE = 1;
    static constexpr unsigned HIGH = 2;
    static constexpr int DEEPEST = 64;
    static constexpr std::uint32_t MOST_DIGITS = 20;

    void skip_other(int depth) {
        Number ignored;
        if (*at_ == '{' || *at_ == '[')
            skip_composite(depth);
        else if (!reads_usual_number(ignored))
            read_value(depth);
    }

    void skip_composite(int depth) {
        require(depth < DEEPEST);
        const bool is_object = *at_++ == '{';
        for (bool is_first = true; has_another(is_object ? '}' : ']', is_first); is_first = false) {
            if (is_object) pass_key();
            skip_value(depth + 1);
        }
    }

    void pass_key() {
        pass_string();
        pass_colon();
    }

    void skip_some_space() {
        while (at_ < end_) {
            if (*at_ == ' ')
                pass_spaces();
            else if (*at_ == '\n' || *at_ == '\r' || *at_ == '\t')
                ++at_;
            else
                return;
        }
    }

    /// Indents are several spaces, so eight are compared at once.
    void pass_spaces() {
#if DISTPROF_WORDS
        while (end_ - at_ >= 8) {
            std::uint64_t word;
            std::memcpy(&word, at_, 8);
            word ^= 0x2020202020202020u;
            if (word != 0) {
                at_ += __builtin_ctzll(word) / 8;
                return;
            }
            at_ += 8;
        }
#endif
        while (at_ < end_ && *at_ == ' ') ++at_;
    }

    /// Whether a number may go on with this byte.
    static bool is_of_number(char byte) {
        return (byte >= '0' && byte <= '9') || byte == '.' || byte == 'e' || byte == 'E';
    }

    static bool is_plain(char byte) {
        return byte != '"' && byte != '\\' && static_cast<unsigned char>(byte) >= ' ';
    }

    /// The rest of a string whose next character is not a quote.
    unsigned pass_escaped_text() {
        unsigned met = 0;
        do {
            require(at_ < end_ && *at_ == '\\');  // otherwise a control character
            met |= ESCAPE;
            pass_escape();
            if (pass_plain_text()) met |= HIGH;
            require(at_ < end_);
        } while (*at_ != '"');
        ++at_;
        return met;
    }

    /// Go to the next quote, backslash or control character. Returns whether a byte was not ASCII.
    DISTPROF_INLINE bool pass_plain_text() {
        bool high = false;
#if defined(__SSE2__)
        while (end_ - at_ >= 16) {
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at_));
            const __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(31)), bytes);
            const __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
            const __m128i slash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
            const auto stops = static_cast<unsigned>(
                _mm_movemask_epi8(_mm_or_si128(control, _mm_or_si128(quote, slash))));
            const auto highs = static_cast<unsigned>(_mm_movemask_epi8(bytes));
            if (stops == 0) {
                high |= highs != 0;
                at_ += 16;
                continue;
            }
            const auto count = static_cast<unsigned>(__builtin_ctz(stops));
            at_ += count;
            return high || (highs & ((1u << count) - 1)) != 0;
        }
#endif
        while (at_ < end_ && is_plain(*at_)) {
            high |= static_cast<unsigned char>(*at_) >= 0x80;
            ++at_;
        }
        return high;
    }

    /// One escape. Surrogates, in pairs or alone, are unusual. So are escapes of ASCII letters,
    /// which could spell a word that has a meaning.
    void pass_escape() {
        require(end_ - at_ >= 2);
        const char escaped = at_[1];
        at_ += 2;
        if (escaped != 'u') {
            require(std::strchr("\"\\/bfnrt", escaped) != nullptr && escaped != '\0');
            return;
        }
        require(end_ - at_ >= 4);
        unsigned code = 0;
        for (int n = 0; n < 4; ++n) code = 16 * code + hex_digit(at_[n]);
        require((code < 0xD800 || code > 0xDFFF) && (code >= 0x80 || !is_word(code)));
        at_ += 4;
    }

    static bool is_word(unsigned code) {
        const auto letter = static_cast<char>(code);
        return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
               (letter >= '0' && letter <= '9') || letter == '_' || letter == ':' || letter == '#';
    }

    static unsigned hex_digit(char digit) {
        if (digit >= '0' && digit <= '9') return static_cast<unsigned>(digit - '0');
        if (digit >= 'a' && digit <= 'f') return static_cast<unsigned>(digit - 'a' + 10);
        if (digit >= 'A' && digit <= 'F') return static_cast<unsigned>(digit - 'A' + 10);
        decline();
    }

    void pass_word(string_view word) {
        require(static_cast<size_t>(end_ - at_) >= word.size() &&
                std::memcmp(at_, word.data(), word.size()) == 0);
        at_ += word.size();
    }

    bool at_digit() const { return at_ < end_ && *at_ >= '0' && *at_ <= '9'; }

    /// Read digits, at least one, into the mantissa. Returns how many.
    DISTPROF_INLINE std::uint32_t pass_digits(std::uint64_t& mantissa) {
        const char* const begin = at_;
#if DISTPROF_WORDS
        for (unsigned count = 8; count == 8 && end_ - at_ >= 8; at_ += count) {
            const std::uint64_t digits = digits_at(at_);
            count = num_digits(digits);
            if (count == 0) break;
            mantissa = POWERS_OF_TEN[count] * mantissa + eight_digits(digits << (64 - 8 * count));
        }
#endif
        while (at_digit()) mantissa = 10 * mantissa + static_cast<std::uint64_t>(*at_++ - '0');
        require(at_ > begin && at_ - begin < 1000);
        return static_cast<std::uint32_t>(at_ - begin);
    }

#if DISTPROF_WORDS
    static constexpr std::array<std::uint64_t, 9> POWERS_OF_TEN{
        1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

    /// Eight bytes, each minus the code of 0. Borrows only affect bytes after the first non-digit.
    static DISTPROF_INLINE std::uint64_t digits_at(const char* from) {
        std::uint64_t word;
        std::memcpy(&word, from, 8);
        return word - 0x3030303030303030u;
    }

    /// How many of these are digits, up to the first non-digit. For a digit, the high four bits of
    /// both the value and the value plus 6 are zero.
    static DISTPROF_INLINE unsigned num_digits(std::uint64_t digits) {
        const std::uint64_t others = (digits | (digits + 0x0606060606060606u)) & 0xF0F0F0F0F0F0F0F0u;
        return others == 0 ? 8 : static_cast<unsigned>(__builtin_ctzll(others)) / 8;
    }

    /// Convert the values of eight digits, the first one lowest, to a number in three
    /// multiplications.
    static DISTPROF_INLINE std::uint64_t eight_digits(std::uint64_t digits) {
        const std::uint64_t pairs = digits * 10 + (digits >> 8);
        const std::uint64_t low = (pairs & 0x000000FF000000FFu) * 0x000F424000000064u;
        const std::uint64_t high = ((pairs >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u;
        return (low + high) >> 32;
    }
#endif

    /// Pass an unused integer, if it is short.
    DISTPROF_INLINE bool passes_short_integer() {
#if DISTPROF_WORDS
        if (end_ - at_ < 17) return false;
        unsigned count = num_digits(digits_at(at_));
        if (count == 8) count += num_digits(digits_at(at_ + 8));
        const char behind = at_[count];
        const bool is_integer = behind != '.' && behind != 'e' && behind != 'E';
        if (!is_integer || count == 0 || count == 16 || (*at_ == '0' && count > 1)) return false;
        at_ += count;
        return true;
#else
        return false;
#endif
    }

    /// Read a number of usual length, if it comes next: not negative, no exponent, at most 16 digits
    /// before the point (microseconds since 1970) and 7 after it. One test of the text's end is enough for all of it.
    DISTPROF_INLINE bool reads_usual_number(Number& number) {
#if DISTPROF_WORDS
        if (end_ - at_ < 26) return false;
        const std::uint64_t first = digits_at(at_);
        unsigned count = num_digits(first);
        if (count == 0) return false;
        std::uint64_t mantissa = eight_digits(first << (64 - 8 * count));
        if (count == 8) {
            const std::uint64_t second = digits_at(at_ + 8);
            const unsigned more = num_digits(second);
            const unsigned half = 32 - 4 * more;  // a shift by all 64 bits is undefined
            mantissa = POWERS_OF_TEN[more] * mantissa + eight_digits(second << half << half);
            count += more;
        }
        if (*at_ == '0' && count > 1) return false;
        const char* behind = at_ + count;
        unsigned decimals = 0;
        const bool has_point = *behind == '.';
        if (has_point) {
            const std::uint64_t third = digits_at(behind + 1);
            decimals = num_digits(third);
            if (decimals == 0 || decimals == 8 || count + decimals > 19) return false;
            mantissa = POWERS_OF_TEN[decimals] * mantissa + eight_digits(third << (64 - 8 * decimals));
            behind += 1 + decimals;
        }
        if (is_of_number(*behind)) return false;
        number = {mantissa, count + decimals, decimals, false, has_point, false};
        at_ = behind;
        return true;
#else
        static_cast<void>(number);
        return false;
#endif
    }

    DISTPROF_INLINE void read_number(Number& number) {
        if (!reads_usual_number(number)) read_any_number(number);
    }

    void read_any_number(Number& number) {
        number = Number{};
        if (*at_ == '-') {
            number.negative = true;
            ++at_;
        }
        const bool leads_with_zero = at_ < end_ && *at_ == '0';
        number.digits = pass_digits(number.mantissa);
        require(!leads_with_zero || number.digits == 1);
        if (at_ < end_ && *at_ == '.') {
            ++at_;
            number.has_point = true;
            number.decimals = pass_digits(number.mantissa);
            number.digits += number.decimals;
        }
        if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
            number.has_exponent = true;
            pass_exponent();
        }
        if (number.has_exponent || number.digits > MOST_DIGITS) ++num_odd_numbers_;
    }

    void pass_exponent() {
        ++at_;
        if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
        std::uint64_t ignored = 0;
        pass_digits(ignored);
    }

    const char* at_;
    const char* end_;
    std::uint64_t num_odd_numbers_ = 0;
};

// Values to numbers -------------------------------------------------------------------------------

constexpr std::int64_t INT64_LARGEST = std::numeric_limits<std::int64_t>::max();

/// An integer, ABSENT if it does not fit into int64.
inline std::int64_t as_integer(const Number& number) {
    require(!number.has_point && !number.has_exponent && number.digits <= 20);
    const bool is_small = number.digits <= 18;
    if (!is_small && (number.digits == 20 || number.mantissa > static_cast<std::uint64_t>(INT64_LARGEST))) {
        require(!number.negative);
        return ABSENT;
    }
    const auto magnitude = static_cast<std::int64_t>(number.mantissa);
    require(!number.negative || magnitude != 0);  // -0
    return number.negative ? -magnitude : magnitude;
}

/// A text as a decimal integer, ABSENT if it contains a letter, such as `0x0`.
inline std::int64_t text_as_integer(string_view text) {
    if (text.empty()) return ABSENT;
    bool all_digits = true;
    bool has_letter = false;
    std::int64_t value = 0;
    for (const char byte : text) {
        const bool is_digit = byte >= '0' && byte <= '9';
        all_digits = all_digits && is_digit;
        has_letter = has_letter || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
        if (all_digits && text.size() <= 18) value = 10 * value + (byte - '0');
    }
    if (has_letter) return ABSENT;
    require(all_digits && text.size() <= 18);
    return value;
}

/// The same for a value of either kind.
inline std::int64_t as_integer(const Value& value) {
    if (value.kind == Kind::Number) return as_integer(value.number);
    require(value.kind == Kind::String && value.ascii && !value.escaped);
    return text_as_integer(value.text());
}

constexpr std::array<std::int64_t, 4> POWERS{1, 10, 100, 1000};
constexpr std::uint32_t DECIMALS_OF_NS = 3;

/// Microseconds to ns, with the result of a conversion through a double: exact up to three decimals
/// below `exact_below_us`, because the double is then within half a nanosecond. Larger times are
/// read as text (`needs_text` in events.py); larger durations are none, whatever their decimals.
inline std::int64_t micros_to_ns(const Number& number, std::int64_t below_us) {
    require(!number.has_exponent && number.digits <= 18);
    const auto mantissa = static_cast<std::int64_t>(number.mantissa);
    if (number.decimals <= DECIMALS_OF_NS) {
        require(mantissa / POWERS[number.decimals] < below_us);
        const std::int64_t ns = mantissa * POWERS[DECIMALS_OF_NS - number.decimals];
        return number.negative ? -ns : ns;
    }
    // Up to 2**53 the quotient of two exact doubles is the double nearest to the decimal number.
    require(number.mantissa <= (std::uint64_t{1} << 53) && number.decimals <= 17);
    double power = 1.0;
    for (std::uint32_t n = 0; n < number.decimals; ++n) power *= 10.0;
    const double magnitude = static_cast<double>(mantissa) / power;
    const double micros = number.negative ? -magnitude : magnitude;
    const double whole = std::floor(micros);
    const double rest = (micros - whole) * 1000.0;
    return static_cast<std::int64_t>(whole) * 1000 + static_cast<std::int64_t>(std::nearbyint(rest));
}

/// Microseconds to ns from the text alone, for times that no double holds.
inline std::int64_t text_to_ns(const Number& number, const Settings& settings) {
    require(!number.has_exponent && number.decimals <= DECIMALS_OF_NS && number.digits <= 19);
    const std::int64_t scale = POWERS[DECIMALS_OF_NS - number.decimals];
    require(number.mantissa < static_cast<std::uint64_t>(settings.largest_ns / scale));
    const std::int64_t ns = static_cast<std::int64_t>(number.mantissa) * scale;
    return number.negative ? -ns : ns;
}

// Columns -----------------------------------------------------------------------------------------

struct DeviceColumns {
    std::vector<std::int64_t> start_ns, end_ns;
    std::vector<std::int32_t> name;
    std::vector<std::int8_t> kind;
    std::vector<std::int64_t> stream;
    std::vector<std::int32_t> device;
    std::vector<std::int64_t> correlation, bytes;
    std::vector<std::int32_t> blocks;

    template <typename Use>
    void each(Use use) {
        for (auto* column : {&start_ns, &end_ns, &stream, &correlation, &bytes}) use(*column);
        for (auto* column : {&name, &device, &blocks}) use(*column);
        use(kind);
    }
};

struct HostColumns {
    std::vector<std::int64_t> start_ns, end_ns;
    std::vector<std::int32_t> name, category, thread;
    std::vector<std::int64_t> correlation;
    std::vector<std::int32_t> sequence, inputs;

    template <typename Use>
    void each(Use use) {
        for (auto* column : {&start_ns, &end_ns, &correlation}) use(*column);
        for (auto* column : {&name, &category, &thread, &sequence, &inputs}) use(*column);
    }
};

struct CommColumns {
    std::vector<std::int64_t> start_ns, end_ns;
    std::vector<std::int32_t> name, category, thread;
    std::vector<std::int64_t> stream, correlation;
    std::vector<std::vector<std::int64_t>> integers;  // in the order of Settings::comm_integers
    std::vector<std::vector<std::int32_t>> texts;     // in the order of Settings::comm_texts

    template <typename Use>
    void each(Use use) {
        for (auto* column : {&start_ns, &end_ns, &stream, &correlation}) use(*column);
        for (auto* column : {&name, &category, &thread}) use(*column);
        for (auto& column : integers) use(column);
        for (auto& column : texts) use(column);
    }
};

/// The name that a metadata event gives a thread.
struct ThreadName {
    string_view process, thread, name;  // the name with its quotes
};

struct Chunk {
    DeviceColumns device;
    HostColumns host;
    CommColumns comm;
    std::vector<ThreadName> thread_names;
    std::int64_t num_events = 0;
    std::int64_t num_clamped = 0;

    explicit Chunk(const Settings& settings) {
        comm.integers.resize(settings.comm_integers.size());
        comm.texts.resize(settings.comm_texts.size());
    }

    /// Remove all rows, but keep their memory for the next ones.
    void clear() {
        device.each([](auto& column) { column.clear(); });
        host.each([](auto& column) { column.clear(); });
        comm.each([](auto& column) { column.clear(); });
        thread_names.clear();
        num_events = 0;
        num_clamped = 0;
    }
};

/// The texts of a trace.
struct Texts {
    explicit Texts(const Settings& settings)
        : names(settings.seed),
          categories(settings.seed),
          threads(settings.seed),
          inputs(settings.seed),
          raw(settings.comm_texts.size(), Dictionary(settings.seed)) {}

    Dictionary names;  // with their quotes and escapes
    Dictionary categories;
    Dictionary threads;           // as `process/thread`
    Dictionary inputs;            // of operators: a JSON list of sizes, types and values as they appear
    std::vector<Dictionary> raw;  // for each text column of collectives, JSON values as they appear

    template <typename Use>
    void each(Use use) {
        use(names);
        use(categories);
        use(threads);
        use(inputs);
        for (Dictionary& texts : raw) use(texts);
    }
};

// Events ------------------------------------------------------------------------------------------

/// Members of an event, one bit each.
enum Field : unsigned { PHASE, EVENT_NAME, CATEGORY, PROCESS, THREAD, START, DURATION, ARGUMENTS, NUM_FIELDS };

struct Event {
    unsigned seen = 0;
    std::uint64_t seen_arguments = 0;
    std::array<Value, NUM_FIELDS> field;
    std::array<Value, MOST_ARGUMENTS> argument;  // those not in the event hold old values

    bool has(Field which) const { return (seen >> which & 1u) != 0; }
    bool has_argument(size_t which) const { return (seen_arguments >> which & 1u) != 0; }
};

/// The bytes between two values, `, "key": ` or a closing brace, are usually the same as in the
/// previous event. They are compared as a whole, and parsed only if they differ. Between two objects
/// of an array they reach from the last value of one to the first value of the next.
class Members {
public:
    /// No member follows: the object ends, or the array does.
    static constexpr std::uint32_t CLOSED = 1u << 31;

    /// Added to the number of a member that is the first one of the next object.
    static constexpr std::uint32_t BEGINS = 1u << 30;

    /// @param in_array  Whether objects follow each other in an array.
    explicit Members(bool in_array) : in_array_(in_array) {
        steps_.reserve(MOST);
        forget();
    }

    /// Forget all texts.
    void forget() {
        steps_.clear();
        steps_.resize(NUM_SPECIAL);
        current_ = START;
    }

    bool is_full() const { return steps_.size() == MOST; }

    /// Begin an object, after its opening brace.
    DISTPROF_INLINE void begin() { current_ = START; }

    /// Go to the value of the next member, or past the closing brace or bracket.
    ///
    /// @param number_of  The number of a key.
    /// @returns The number of its key, or `CLOSED`.
    template <typename NumberOf>
    DISTPROF_INLINE std::uint32_t next(Scanner& scanner, NumberOf number_of) {
        Step& from = steps_[current_];
        for (size_t place = 0; place < from.next.size(); ++place) {
            const std::uint32_t likely = from.next[place];
            if (likely == START) break;
            const Step& step = steps_[likely];
            if (scanner.passes(step.text.data(), step.mask, step.size)) {
                current_ = likely;
                from.count(place);
                if (step.number != CLOSED) scanner.skip_more_space();
                return step.number;
            }
        }
        return read(scanner, number_of);
    }

    /// Let later texts count more than earlier ones.
    void age() {
        for (Step& step : steps_)
            for (std::uint32_t& hits : step.hits) hits /= 2;
    }

private:
    struct Step {
        std::array<char, Scanner::KNOWN> text{};
        std::uint64_t mask = 0;
        std::uint32_t size = 0;
        std::uint32_t number = 0;
        std::array<std::uint32_t, 5> next{};  // steps that followed it, the likeliest first, then START
        std::array<std::uint32_t, 5> hits{};  // how often each of them did

        DISTPROF_INLINE void count(size_t place) {
            ++hits[place];
            if (place > 0 && hits[place] > hits[place - 1]) {
                std::swap(hits[place], hits[place - 1]);
                std::swap(next[place], next[place - 1]);
            }
        }

        void add(std::uint32_t follower) {
            size_t place = 0;
            while (place + 1 < next.size() && next[place] != START && next[place] != follower) ++place;
            if (next[place] != follower) hits[place] = 0;
            next[place] = follower;
        }
    };

    /// Steps that have no text: before the first member, and after one that is not remembered.
    enum : std::uint32_t { START, OTHER, NUM_SPECIAL };

    static constexpr size_t MOST = 96;

    template <typename NumberOf>
    std::uint32_t read(Scanner& scanner, NumberOf number_of) {
        const char* const begin = scanner.place();
        std::uint32_t number = CLOSED;
        if (scanner.has_another('}', current_ == START)) {
            number = static_cast<std::uint32_t>(number_of(scanner.read_key()));
        } else if (in_array_ && scanner.has_another(']', false)) {
            scanner.expect('{');
            require(scanner.has_another('}', true));
            number = BEGINS | static_cast<std::uint32_t>(number_of(scanner.read_key()));
        }
        const std::uint32_t found = step_of({begin, static_cast<size_t>(scanner.place() - begin)}, number);
        if (current_ != OTHER && found != OTHER) steps_[current_].add(found);
        current_ = found;
        return number;
    }

    std::uint32_t step_of(string_view text, std::uint32_t number) {
        for (std::uint32_t known = NUM_SPECIAL; known < steps_.size(); ++known) {
            const Step& step = steps_[known];
            if (string_view(step.text.data(), step.size) == text) return known;
        }
        if (text.size() >= Scanner::KNOWN || is_full()) return OTHER;
        Step& step = steps_.emplace_back();
        std::memcpy(step.text.data(), text.data(), text.size());
        step.mask = (std::uint64_t{1} << text.size()) - 1;
        step.size = static_cast<std::uint32_t>(text.size());
        step.number = number;
        return static_cast<std::uint32_t>(steps_.size() - 1);
    }

    const bool in_array_;
    std::vector<Step> steps_;
    std::uint32_t current_ = START;
};

/// Reads the chunks of one trace.
class TraceReader {
public:
    explicit TraceReader(const Settings& settings)
        : settings_(settings), texts_(settings), chunk_(settings) {}

    /// Columns of the next chunk, until another one is read.
    ///
    /// @param exact        Whether times are converted from their text (see events.py).
    /// @param device_only  Keep only device rows and step marks.
    /// @throws Declined    If the Python code has to read the chunk. All texts are forgotten.
    const Chunk& read(string_view text, bool exact, bool device_only) {
        exact_ = exact;
        device_only_ = device_only;
        scanner_ = Scanner(text.data(), text.data() + text.size());
        begin();
        try {
            read_array();
        } catch (const Declined&) {
            forget();
            throw;
        }
        return chunk_;
    }

    /// Texts of the chunks so far.
    const Texts& texts() const { return texts_; }

    /// Assign codes from 0 again.
    void forget() {
        texts_.each([](Dictionary& texts) { texts.clear(); });
        kinds_.clear();
        is_step_.clear();
        is_communication_.clear();
        has_inputs_.clear();
    }

private:
    /// Views of the previous chunk are of no use any more.
    void begin() {
        chunk_.clear();
        waiting_.clear();
        event_ = Event{};
        last_word_ = {};
        has_last_category_ = has_last_thread_ = false;
        bool is_large = false;
        texts_.each([&](const Dictionary& texts) { is_large = is_large || texts.is_large(); });
        if (is_large) forget();
        texts_.each([](Dictionary& texts) { texts.begin_chunk(); });
        for (Members* members : {&members_, &arguments_}) {
            if (members->is_full()) members->forget();
            members->age();
        }
    }

    void read_array() {
        scanner_.skip_space();
        scanner_.expect('[');
        if (scanner_.has_another(']', true)) read_events();
        scanner_.skip_space();
        require(scanner_.is_done());
        enter_threads_of_device_rows();
    }

    void read_events() {
        scanner_.expect('{');
        members_.begin();
        std::uint32_t first = members_.next(scanner_, field_of);
        require(first < Members::BEGINS);  // an event without members
        do {
            first = read_event(static_cast<Field>(first & ~Members::BEGINS));
            ++chunk_.num_events;
        } while (first != Members::CLOSED);
    }

    // One event ------------------------------------------------------------------------------------

    /// Read an event from its first value on. Returns the first member of the next one, or `CLOSED`.
    std::uint32_t read_event(Field first) {
        event_.seen = 0;
        event_.seen_arguments = 0;
        const char* const begin = scanner_.place();
        const char* end = begin;
        const std::uint64_t num_odd = scanner_.num_odd_numbers();
        std::uint32_t field = first;
        do {
            read_member(static_cast<Field>(field));
            if (event_.seen == 1u << PHASE && is_skipped()) return skip_rest_of_event();
            end = scanner_.place();
            field = members_.next(scanner_, field_of);
        } while (field < Members::BEGINS);
        require(event_.has(PHASE));
        const bool is_odd = scanner_.num_odd_numbers() != num_odd;
        if (phase() == 'X') {
            text_ = string_view(begin, static_cast<size_t>(end - begin));
            is_odd_ = is_odd;
            add_complete();
        } else if (phase() == 'M') {
            add_metadata(is_odd);
        } else {
            require(is_skipped());
        }
        return field;
    }

    std::uint32_t skip_rest_of_event() {
        std::uint32_t field;
        while ((field = members_.next(scanner_, field_of)) < Members::BEGINS) {
            require(field != PHASE);
            scanner_.skip_value(1);
        }
        return field;
    }

    char phase() const { return event_.field[PHASE].text().front(); }

    bool is_skipped() const {
        return phase() != 'X' && settings_.skipped_phases.find(phase()) != std::string::npos;
    }

    static DISTPROF_INLINE Field field_of(string_view key) {
        switch (key.size()) {
            case 2:
                if (key == "ph") return PHASE;
                if (key == "ts") return START;
                break;
            case 3:
                if (key == "cat") return CATEGORY;
                if (key == "pid") return PROCESS;
                if (key == "tid") return THREAD;
                if (key == "dur") return DURATION;
                break;
            case 4:
                if (key == "name") return EVENT_NAME;
                if (key == "args") return ARGUMENTS;
                break;
            default:
                break;
        }
        return NUM_FIELDS;
    }

    void read_member(Field field) {
        if (field == NUM_FIELDS) {
            scanner_.skip_value(1);
            return;
        }
        require(!event_.has(field));
        event_.seen |= 1u << field;
        if (field == ARGUMENTS && scanner_.peek() == '{') {
            event_.field[ARGUMENTS].kind = Kind::Object;
            read_arguments();
            return;
        }
        Value& value = event_.field[field];
        if (((REPEATED >> field) & 1u) != 0 && scanner_.passes_again(value)) return;
        scanner_.read_value(1, value);
        if (field == PHASE) require_phase(value);
    }

    /// Members with few different values.
    static constexpr unsigned REPEATED = 1u << PHASE | 1u << CATEGORY | 1u << PROCESS | 1u << THREAD;

    static void require_phase(const Value& phase) {
        require(phase.kind == Kind::String && !phase.escaped && phase.text().size() == 1);
    }

    void read_arguments() {
        scanner_.expect('{');
        arguments_.begin();
        const auto number_of = [this](string_view key) { return settings_.argument_of(key); };
        std::uint32_t number;
        while ((number = arguments_.next(scanner_, number_of)) != Members::CLOSED) {
            if (number == MOST_ARGUMENTS) {
                scanner_.skip_value(2);
                continue;
            }
            require(!event_.has_argument(number));
            event_.seen_arguments |= std::uint64_t{1} << number;
            scanner_.read_value(2, event_.argument[number]);
        }
    }

    // Types that the Python decoder requires -------------------------------------------------------

    static void require_text(const Value& value) {
        require(value.kind == Kind::String && (value.ascii || is_utf8(value.raw)));
    }

    /// A process or thread: a plain text or an integer.
    void require_identity(Field field) const {
        if (!event_.has(field)) return;
        const Value& value = event_.field[field];
        if (value.kind == Kind::Number) {
            as_integer(value.number);
            require(value.number.digits <= 18);
            return;
        }
        require_text(value);
        require(!value.escaped);
    }

    string_view identity(Field field) const {
        if (!event_.has(field)) return {};
        const Value& value = event_.field[field];
        return value.kind == Kind::Number ? value.raw : value.text();
    }

    /// An integer argument, or one written as a text if that is allowed.
    std::int64_t integer_argument(Argument which, bool or_text) const {
        if (!event_.has_argument(which)) return ABSENT;
        const Value& value = event_.argument[which];
        require(or_text || value.kind == Kind::Number);
        return as_integer(value);
    }

    /// Thread blocks of a grid, ABSENT if there is no grid or an impossible one.
    std::int32_t blocks() const {
        if (!event_.has_argument(GRID) || event_.argument[GRID].kind == Kind::Null)
            return static_cast<std::int32_t>(ABSENT);
        const Value& value = event_.argument[GRID];
        require(value.kind == Kind::Array);
        Scanner scanner(value.raw.data(), value.raw.data() + value.raw.size());
        scanner.expect('[');
        constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
        std::int64_t product = 1;
        int dimensions = 0;
        for (; scanner.has_another(']', dimensions == 0); ++dimensions) {
            const Value size = scanner.read_value(0);
            require(size.kind == Kind::Number && size.number.digits <= 10);
            const std::int64_t extent = as_integer(size.number);
            const bool is_possible = product > 0 && extent > 0 && extent <= most;
            product = is_possible && product * extent <= most ? product * extent : 0;
        }
        const bool is_grid = dimensions >= 1 && dimensions <= 3 && product > 0;
        return static_cast<std::int32_t>(is_grid ? product : ABSENT);
    }

    // Complete events ------------------------------------------------------------------------------

    /// The members common to all complete events, with checked types.
    struct Row {
        std::int64_t start_ns, end_ns, correlation;
        std::int32_t name, category, sequence;
        std::int8_t kind;
    };

    void add_complete() {
        require(event_.has(EVENT_NAME) && event_.has(START));
        const Value& name = event_.field[EVENT_NAME];
        const Value& start = event_.field[START];
        require_text(name);
        require(start.kind == Kind::Number);
        require_identity(PROCESS);
        require_identity(THREAD);
        require(!event_.has(ARGUMENTS) || event_.field[ARGUMENTS].kind == Kind::Object);
        Row row{};
        row.start_ns = exact_ ? text_to_ns(start.number, settings_) : micros_to_ns(start.number, settings_.exact_below_us);
        const std::int64_t duration_ns = duration();
        row.correlation = integer_argument(CORRELATION, false);
        row.sequence = sequence();
        const std::int64_t stream = integer_argument(STREAM, true);
        const std::int64_t device = integer_argument(DEVICE, false);
        const std::int64_t bytes = integer_argument(BYTES, true);
        const std::int32_t num_blocks = blocks();
        require(stream >= ABSENT);
        enter_category(row);
        if (row.kind == DROPPED) {
            if (!settings_.is_module(name.text())) return;
            row.kind = HOST;
        }
        enter_name(row, name);
        if (device_only_ && row.kind < 0 && !is_step_[static_cast<size_t>(row.name)]) return;
        row.end_ns = row.start_ns + clamped(duration_ns);
        if (row.kind >= 0)
            add_device(row, stream, device, bytes, num_blocks);
        else
            add_host(row);
    }

    /// Duration in ns, negative for none.
    std::int64_t duration() const {
        if (!event_.has(DURATION)) return ABSENT;
        const Value& value = event_.field[DURATION];
        require(value.kind == Kind::Number);
        return micros_to_ns(value.number, settings_.largest_ns / 1000);
    }

    /// An impossible duration becomes none, and is counted.
    std::int64_t clamped(std::int64_t duration_ns) {
        const bool is_absurd = duration_ns < 0 || duration_ns > settings_.longest_ns;
        chunk_.num_clamped += is_absurd;
        return is_absurd ? 0 : duration_ns;
    }

    void enter_name(Row& row, const Value& name) {
        const auto [code, is_new] = texts_.names.enter(name.raw);
        if (is_new) {
            is_step_.push_back(settings_.is_step(name.text()));
            is_communication_.push_back(settings_.is_communication(name.text()));
            has_inputs_.push_back(UNDECIDED);
        }
        row.name = code;
    }

    void enter_category(Row& row) {
        string_view word;
        if (event_.has(CATEGORY)) {
            const Value& category = event_.field[CATEGORY];
            require_text(category);
            require(!category.escaped);
            word = category.text();
        }
        if (!has_last_category_ || word != last_word_) {
            const auto [code, is_new] = texts_.categories.enter(word);
            if (is_new) kinds_.push_back(settings_.kind_of(word));
            has_last_category_ = true;
            last_word_ = word;
            last_category_ = code;
        }
        row.category = last_category_;
        row.kind = kinds_[static_cast<size_t>(row.category)];
    }

    void add_device(
        const Row& row, std::int64_t stream, std::int64_t device, std::int64_t bytes, std::int32_t num_blocks) {
        if (stream == NO_STREAM || stream == ABSENT) stream = stream_in(THREAD);
        if (device == ABSENT) device = integer_in(PROCESS);
        if (device < 0 || device > std::numeric_limits<std::int32_t>::max()) device = ABSENT;
        DeviceColumns& columns = chunk_.device;
        columns.start_ns.push_back(row.start_ns);
        columns.end_ns.push_back(row.end_ns);
        columns.name.push_back(row.name);
        columns.kind.push_back(row.kind);
        columns.stream.push_back(stream);
        columns.device.push_back(static_cast<std::int32_t>(device));
        columns.correlation.push_back(row.correlation);
        columns.bytes.push_back(bytes);
        columns.blocks.push_back(num_blocks);
        if (event_.has_argument(COLLECTIVE) && event_.argument[COLLECTIVE].kind != Kind::Null) {
            waiting_.push_back({chunk_.comm.start_ns.size(), identity(PROCESS), identity(THREAD)});
            add_communication(row, 0, stream);
        }
    }

    /// A process or thread read as an integer.
    std::int64_t integer_in(Field field) const {
        return event_.has(field) ? as_integer(event_.field[field]) : ABSENT;
    }

    std::int64_t stream_in(Field field) const {
        const std::int64_t stream = integer_in(field);
        return stream == NO_STREAM || stream < 0 ? ABSENT : stream;
    }

    void add_host(const Row& row) {
        const std::int32_t thread = thread_code(identity(PROCESS), identity(THREAD));
        HostColumns& columns = chunk_.host;
        if (columns.inputs.empty()) texts_.inputs.code_of({});  // first, as in the Python code
        columns.start_ns.push_back(row.start_ns);
        columns.end_ns.push_back(row.end_ns);
        columns.name.push_back(row.name);
        columns.category.push_back(row.category);
        columns.thread.push_back(thread);
        columns.correlation.push_back(row.correlation);
        columns.sequence.push_back(row.sequence);
        columns.inputs.push_back(inputs_code(row.name));
        if (is_communication_[static_cast<size_t>(row.name)])
            add_communication(row, thread, ABSENT);
    }

    /// Autograd's number of an operator, ABSENT if it has none or an impossible one.
    std::int32_t sequence() const {
        const std::int64_t number = integer_argument(SEQUENCE, false);
        const bool fits = number >= 0 && number <= std::numeric_limits<std::int32_t>::max();
        return static_cast<std::int32_t>(fits ? number : ABSENT);
    }

    /// Sizes, types and values of an operator's inputs as one text; empty without sizes or need.
    std::int32_t inputs_code(std::int32_t name) {
        const size_t sizes = event_.has_argument(INPUT_DIMS) ? INPUT_DIMS : OLD_INPUT_DIMS;
        if (!event_.has_argument(sizes)) return NO_INPUTS;
        std::int8_t& needed = has_inputs_[static_cast<size_t>(name)];
        if (needed == UNDECIDED) needed = settings_.has_inputs(event_.field[EVENT_NAME].text());
        if (!needed) return NO_INPUTS;
        const auto list = [this](size_t which) {
            return event_.has_argument(which) ? event_.argument[which].raw : string_view("[]");
        };
        return texts_.inputs.code_of_list(
            std::array{event_.argument[sizes].raw, list(INPUT_TYPES), list(CONCRETE_INPUTS)});
    }

    static constexpr std::int32_t NO_INPUTS = 0;  // code of the empty text
    static constexpr std::int8_t UNDECIDED = -1;

    /// Profilers write thread by thread, so few events change the thread.
    std::int32_t thread_code(string_view process, string_view thread) {
        if (has_last_thread_ && process == last_process_ && thread == last_thread_)
            return last_thread_code_;
        made_.assign(process).append("/").append(thread);
        has_last_thread_ = true;
        last_process_ = process;
        last_thread_ = thread;
        last_thread_code_ = texts_.threads.code_of(made_);
        return last_thread_code_;
    }

    // Communication --------------------------------------------------------------------------------

    /// The whole event must be readable, because its arguments may be requested later.
    void add_communication(const Row& row, std::int32_t thread, std::int64_t stream) {
        require(!is_odd_);
        require(is_ascii(text_) || is_utf8(text_));
        CommColumns& columns = chunk_.comm;
        columns.start_ns.push_back(row.start_ns);
        columns.end_ns.push_back(row.end_ns);
        columns.name.push_back(row.name);
        columns.category.push_back(row.category);
        columns.thread.push_back(thread);
        columns.stream.push_back(stream);
        columns.correlation.push_back(row.correlation);
        for (size_t n = 0; n < columns.integers.size(); ++n)
            columns.integers[n].push_back(comm_integer(settings_.comm_integers[n]));
        for (size_t n = 0; n < columns.texts.size(); ++n)
            columns.texts[n].push_back(texts_.raw[n].code_of(comm_text(settings_.comm_texts[n])));
    }

    /// The key of a column in this event.
    size_t key_of(const CommColumn& column) const {
        return event_.has_argument(column.first) ? column.first : column.other;
    }

    std::int64_t comm_integer(const CommColumn& column) const {
        const size_t key = key_of(column);
        if (!event_.has_argument(key)) return ABSENT;
        const Value& value = event_.argument[key];
        return value.kind == Kind::Null ? ABSENT : as_integer(value);
    }

    string_view comm_text(const CommColumn& column) const {
        const size_t key = key_of(column);
        return event_.has_argument(key) ? event_.argument[key].raw : string_view("null");
    }

    /// Codes of threads are assigned to host rows first, as in the Python code.
    void enter_threads_of_device_rows() {
        for (const Waiting& row : waiting_)
            chunk_.comm.thread[row.place] = thread_code(row.process, row.thread);
    }

    // Metadata -------------------------------------------------------------------------------------

    void add_metadata(bool is_odd) {
        require_identity(PROCESS);
        require_identity(THREAD);
        if (event_.has(EVENT_NAME)) require_text(event_.field[EVENT_NAME]);
        if (event_.has(EVENT_NAME)) require(!event_.field[EVENT_NAME].escaped);
        require(!event_.has(ARGUMENTS) || event_.field[ARGUMENTS].kind == Kind::Object);
        if (!event_.has_argument(NAME)) return;
        const Value& name = event_.argument[NAME];
        require(!is_odd && name.kind != Kind::Array && name.kind != Kind::Object);
        if (name.kind != Kind::String) return;
        require_text(name);
        if (event_.has(EVENT_NAME) && event_.field[EVENT_NAME].text() == "thread_name")
            chunk_.thread_names.push_back({identity(PROCESS), identity(THREAD), name.raw});
    }

    struct Waiting {
        size_t place;
        string_view process, thread;
    };

    const Settings& settings_;
    Texts texts_;
    Chunk chunk_;
    Members members_{true};
    Members arguments_{false};
    std::vector<std::int8_t> kinds_;                // by category
    std::vector<bool> is_step_, is_communication_;  // by name
    std::vector<std::int8_t> has_inputs_;           // by name: 0, 1 or UNDECIDED

    // of the present chunk
    bool exact_ = false;
    bool device_only_ = false;
    Scanner scanner_{nullptr, nullptr};
    Event event_;
    string_view text_;     // of the event
    bool is_odd_ = false;  // whether a number in it may not be readable
    bool has_last_category_ = false;
    string_view last_word_;
    std::int32_t last_category_ = 0;
    std::vector<Waiting> waiting_;  // device rows of communication, until their threads have codes
    std::string made_;
    bool has_last_thread_ = false;
    string_view last_process_, last_thread_;
    std::int32_t last_thread_code_ = 0;
};

}  // namespace distprof
