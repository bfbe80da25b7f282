// Simulation of dependency graphs, with the same additions as distprof/replay.py. No Python.
//
// Edges come in the order of Graph.levels: all edges of a target are adjacent, after all edges to
// its sources. Indices must have been checked (`are_below`).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace distprof {

struct Edges {
    const std::int64_t* source;
    const std::int64_t* target;
    size_t size;
};

inline bool are_below(const std::int64_t* values, size_t size, size_t limit) {
    return std::all_of(values, values + size, [limit](std::int64_t value) {
        return value >= 0 && static_cast<size_t>(value) < limit;
    });
}

/// Integers wrap around as in numpy; doubles are added normally.
template <typename Time>
Time sum(Time one, Time other) {
    if constexpr (std::is_integral_v<Time>) {
        using Wrapping = std::make_unsigned_t<Time>;
        return static_cast<Time>(static_cast<Wrapping>(one) + static_cast<Wrapping>(other));
    } else {
        return one + other;
    }
}

/// Rows of one value per simulation, or of one value for all of them.
template <typename Time>
struct Rows {
    const Time* values;  // nullptr for none
    size_t width;

    Time at(size_t row, size_t column) const { return values[width == 1 ? row : row * width + column]; }
};

/// Start and end of each operation, for `width` sets of durations at once.
///
/// @param number  Of each edge, its row in `delay`.
/// @param start   In: the earliest start of each operation. Out: when it starts.
/// @param end     In: start plus duration.
template <typename Time>
void simulate(const Edges& edges, const std::int64_t* number, size_t width, Rows<Time> duration,
              Rows<Time> delay, Time* start, Time* end) {
    for (size_t edge = 0; edge < edges.size; ++edge) {
        const auto source = static_cast<size_t>(edges.source[edge]);
        const auto target = static_cast<size_t>(edges.target[edge]);
        const bool is_last = edge + 1 == edges.size || edges.target[edge + 1] != edges.target[edge];
        for (size_t column = 0; column < width; ++column) {
            Time arrival = end[source * width + column];
            if (delay.values != nullptr)
                arrival = sum(arrival, delay.at(static_cast<size_t>(number[edge]), column));
            Time& begins = start[target * width + column];
            begins = std::max(begins, arrival);
            if (is_last) end[target * width + column] = sum(begins, duration.at(target, column));
        }
    }
}

/// Length of the longest chain that leads to each operation. Operations whose `waiting_for` is not
/// 0 at the end wait for each other.
struct Depths {
    std::vector<std::int64_t> depth;
    std::vector<std::int64_t> waiting_for;
};

inline Depths depths(size_t num_operations, const Edges& edges) {
    Depths found;
    found.depth.assign(num_operations, 0);
    found.waiting_for.assign(num_operations, 0);
    std::vector<size_t> first(num_operations + 1, 0);
    for (size_t edge = 0; edge < edges.size; ++edge) {
        ++first[static_cast<size_t>(edges.source[edge]) + 1];
        ++found.waiting_for[static_cast<size_t>(edges.target[edge])];
    }
    for (size_t operation = 0; operation < num_operations; ++operation)
        first[operation + 1] += first[operation];
    std::vector<size_t> follower(edges.size);
    std::vector<size_t> place(first.begin(), first.end() - 1);
    for (size_t edge = 0; edge < edges.size; ++edge)
        follower[place[static_cast<size_t>(edges.source[edge])]++] = static_cast<size_t>(edges.target[edge]);
    std::vector<size_t> ready;
    for (size_t operation = 0; operation < num_operations; ++operation)
        if (found.waiting_for[operation] == 0) ready.push_back(operation);
    for (size_t done = 0; done < ready.size(); ++done) {
        const size_t operation = ready[done];
        for (size_t edge = first[operation]; edge < first[operation + 1]; ++edge) {
            const size_t next = follower[edge];
            found.depth[next] = std::max(found.depth[next], found.depth[operation] + 1);
            if (--found.waiting_for[next] == 0) ready.push_back(next);
        }
    }
    return found;
}

}  // namespace distprof
