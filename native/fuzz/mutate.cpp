// Reads randomly damaged chunks in one process, under sanitizers:
//
//   c++ -std=c++17 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
//       native/fuzz/mutate.cpp -o mutate
//   ./mutate COUNT SEED CHUNK…          (files that hold one JSON array of events each)
//
// Each chunk is copied to a block of exactly its size, so that a read beyond it is found. The
// result must also be consistent: columns of equal length, codes that have a text. Whether it
// equals Python's result is checked by benchmarks/fuzzing/chunks.py.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../chunk.hpp"
#include "../search.hpp"

namespace {

using distprof::Chunk;
using distprof::Settings;
using distprof::Texts;
using distprof::TraceReader;

const char* const TOKENS[] = {
    "\"", "\\", "{", "}", "[", "]", ",", ":", " ", "\n", "0", "-", "1", ".5", "1e3", "-0", "null",
    "true", "NaN", "9007199254740993", "9223372036854775808", "4294967295", "18446744073709551616",
    "99999999999999999999", "8796093022208.5", "0.0005", "3999999999999999.999", "\"x\"", "\"7\"",
    "\"0x0\"", "[]", "{}", "[1,2,3]", "[2147483647,2]", "\"ph\":\"X\",", "\"ts\":1,", "\"dur\":1,",
    "\"cat\":\"kernel\",", "\"name\":\"c10d::x\",", "\"args\":{\"stream\":1},", "\"tid\":\"a/b\",",
    "\"Collective name\":\"a\",", "\"Seq\":\"5\",", "\\u0041", "\\ud800", "\\n", "\xc3\xa9", "\xff",
    "\xed\xa0\x80", "\xf0\x9f\x98\x80", "python_function", "gpu_memcpy", "thread_name", "\"M\""};

Settings usual_settings() {
    Settings settings;
    settings.seed = 7;
    settings.categories = {{"kernel", 0}, {"gpu_memcpy", 2}, {"gpu_user_annotation", 3}, {"python_function", -2}};
    settings.module_prefix = "nn.Module: ";
    settings.step_prefix = "ProfilerStep#";
    settings.without_inputs = {"aten::view", "aten::empty"};
    settings.comm_prefixes = {"c10d::", "nccl:", "gloo:", "record_param_comms"};
    settings.skipped_phases = "stfiICBEbenNODPRcvVapSTF(),";
    settings.arguments = {"name", "stream", "correlation", "device", "bytes", "grid", "Collective name",
                          "External id", "external id", "In msg nelems", "Seq", "dtype",
                          "Process Group Ranks", "Comms Id", "Input Dims", "Input dims"};
    settings.comm_integers = {{7, 8}, {9, 9}, {10, 10}};
    settings.comm_texts = {{6, 6}, {11, 11}, {12, 12}, {13, 13}, {14, 15}};
    settings.longest_ns = 604'800'000'000'000;
    settings.largest_ns = 4'000'000'000'000'000'000;
    settings.exact_below_us = 8'796'093'022'208;
    settings.index_arguments();
    return settings;
}

class Mutator {
public:
    explicit Mutator(std::uint64_t seed) : random_(seed) {}

    size_t below(size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(random_() % limit); }

    std::string mutated(std::string chunk) {
        for (size_t changes = 1 + below(3); changes > 0; --changes) change(chunk);
        return chunk;
    }

    std::string token() { return TOKENS[below(std::size(TOKENS))]; }

private:
    void change(std::string& chunk) {
        const size_t place = below(chunk.size() + 1);
        const size_t length = std::min(chunk.size() - place, LENGTHS[below(7)]);
        switch (below(5)) {
            case 0:
                chunk.replace(place, length, 1, static_cast<char>(below(256)));
                break;
            case 1:
                chunk.insert(below(chunk.size() + 1), chunk.substr(place, length));
                break;
            case 2:
                chunk.erase(place, length);
                break;
            case 3:
                chunk.replace(place, length, token());
                break;
            default:
                replace_value(chunk, place);
        }
    }

    void replace_value(std::string& chunk, size_t place) {
        const size_t colon = chunk.find(':', place);
        if (colon == std::string::npos) return;
        const size_t end = chunk.find_first_of(",}]", colon);
        if (end != std::string::npos) chunk.replace(colon + 1, end - colon - 1, token());
    }

    static constexpr size_t LENGTHS[] = {0, 0, 1, 1, 3, 20, 300};
    std::mt19937_64 random_;
};

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
}

void check_codes(const std::vector<std::int32_t>& codes, size_t rows, size_t texts) {
    check(codes.size() == rows, "columns are equally long");
    for (const std::int32_t code : codes)
        check(code >= 0 && static_cast<size_t>(code) < texts, "every code has a text");
}

void check_chunk(const Chunk& chunk, const Texts& texts) {
    const size_t names = texts.names.texts().size(), categories = texts.categories.texts().size();
    const size_t threads = texts.threads.texts().size();
    check_codes(chunk.device.name, chunk.device.start_ns.size(), names);
    check_codes(chunk.host.name, chunk.host.start_ns.size(), names);
    check_codes(chunk.host.category, chunk.host.start_ns.size(), categories);
    check_codes(chunk.host.thread, chunk.host.start_ns.size(), threads);
    check_codes(chunk.comm.thread, chunk.comm.start_ns.size(), threads);
    for (size_t n = 0; n < chunk.comm.texts.size(); ++n)
        check_codes(chunk.comm.texts[n], chunk.comm.start_ns.size(), texts.raw[n].texts().size());
    for (const distprof::string_view text : texts.threads.texts())
        check(text.find('/') != distprof::string_view::npos, "a thread has two parts");
}

std::string content_of(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

/// Checks that the result has the announced length.
void check_search(const distprof::EventSearch& search) {
    const distprof::Found found = search.select();
    const std::unique_ptr<char[]> array(new char[search.size_of(found)]);
    search.write(found, array.get());
}

/// Checks that a word is found in the same place as by the standard library.
void check_needle(distprof::string_view text, const std::string& word, size_t from) {
    check(distprof::Needle(word).find_in(text, from) == text.find(word, from), "a word is where it is");
}

int main(int count, char** words) {
    if (count < 4) return std::fprintf(stderr, "usage: mutate COUNT SEED CHUNK...\n"), 2;
    const long long wanted = std::atoll(words[1]);
    Mutator mutator(static_cast<std::uint64_t>(std::atoll(words[2])));
    std::vector<std::string> seeds;
    for (int n = 3; n < count; ++n) seeds.push_back(content_of(words[n]));
    const Settings settings = usual_settings();
    const distprof::Search search{"},\n{", 3, "cat\": \"", {"kernel\"", "gpu_"}, "\"name\": \"ProfilerStep#"};
    long long num_read = 0;
    TraceReader trace(settings);
    for (long long n = 0; n < wanted; ++n) {
        const std::string made = mutator.mutated(seeds[mutator.below(seeds.size())]);
        const std::unique_ptr<char[]> exact(new char[made.size()]);
        made.copy(exact.get(), made.size());
        const distprof::string_view text(exact.get(), made.size());
        check_needle(text, mutator.token(), mutator.below(text.size() + 1));
        if (n % 8 == 0) check_search(distprof::EventSearch(text, search));
        try {
            // What it remembers must not depend on a chunk that is gone: most traces have several.
            TraceReader other(settings);
            TraceReader& reader = n % 5 == 0 ? other : trace;
            check_chunk(reader.read(text, n % 3 == 0, n % 4 == 0), reader.texts());
            ++num_read;
        } catch (const distprof::Declined&) {
        }
    }
    std::printf("%lld chunks: %lld read, %lld declined, nothing found\n", wanted, num_read, wanted - num_read);
    return 0;
}
