// How the work is cut: images into blocks of lanes, children into tiles and parts, and parts among threads.
#pragma once

#include <atomic>
#include <exception>
#include <new>
#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "products.hpp"

// An entry point has the instruction set for which it was compiled at the end of its name.
#define NAME_(a, b) a##_##b
#define NAME(a, b) NAME_(a, b)
#define ENTRY(name) NAME(name, MEREO_ISA)

namespace {

inline idx blocks_of(const Sizes& z) { return (z.B + VL - 1) / VL; }

// (B, R, E) -> [block of images][R E][lane]
inline void to_blocks(const float* x, const Sizes& z, vec* out) {
    const idx RE = z.R * z.E;
    for (idx b = 0; b < z.B; b += VL)
        to_lanes(x + b * RE, RE, std::min<idx>(VL, z.B - b), RE, out + b / VL * RE, INFINITY);
}

// Children go by in tiles: their transforms should stay in the second-level cache while the images go by. Where they do
// not return, since one block holds all images, long stretches of memory are read faster.
inline idx tile_of(const Sizes& z) {
    return std::clamp<idx>((192 << 10) / std::max<idx>(4 * z.R * z.D * z.E, 1), z.B <= VL ? 32 : 4, 32);
}

// The children are cut into parts, each summed for itself; threads take the next part that is free, so that a thread
// which is held up holds nobody up. As long as there are more parts than threads, results do not depend on how many.
struct Team {
    idx parts, threads;
    // Work in multiplications: starting a thread takes as long as some 1e6 of them.
    Team(idx count, double work, idx most, idx asked) {
        count = std::max<idx>(count, 1);
        threads = std::clamp<idx>(std::min<idx>(asked, idx(work / 2e6)), 1, count);
        parts = work < 4e6 ? 1 : most;
        parts = std::min(std::max(parts, threads), count);
    }
    Team(const Sizes& z, idx asked)
        : Team(z.S, double(z.B) * z.S * z.R * z.D * z.E,
               std::clamp<idx>((8 << 20) / std::max<idx>(4 * z.B * z.R * z.E, 1), 1, 8), asked) {}
    // work(part, first, last) of `count` children. Throws std::bad_alloc if any thread ran out of memory.
    template <class Work> void share_out(idx count, Work work) const {
        std::atomic<idx> next{0};
        std::atomic<bool> out_of_memory{false};
        auto run = [&, all = parts] {
            try {
                for (idx part; (part = next++) < all;) work(part, count * part / all, count * (part + 1) / all);
            } catch (const std::exception&) {  // an exception that leaves a thread would end the process
                out_of_memory = true;
                next = all;
            }
        };
        std::vector<std::thread> others;
        others.reserve(threads - 1);
        try {
            for (idx t = 1; t < threads; ++t) others.emplace_back(run);
        } catch (const std::exception&) {  // no more threads can be started: the running ones do all the work
        }
        run();
        for (auto& each : others) each.join();
        if (out_of_memory) throw std::bad_alloc();
    }
};

// Ask for large pages where results are written: what the system hands out for long sequences is new memory, and a
// fault for every 4 KiB of it would take a third of the time.
inline void ask_for_large_pages(float* at, idx count) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 2 << 20, first = (reinterpret_cast<uintptr_t>(at) + page - 1) / page * page;
    const uintptr_t end = reinterpret_cast<uintptr_t>(at + count) / page * page;
    if (end > first + 8 * page) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

// Runs the body of an entry point: 0, or 1 where memory ran out. No exception may cross the border to Python.
template <class Body> int guarded(Body body) {
    try {
        body();
        return 0;
    } catch (const std::exception&) {
        return 1;
    }
}

// Add up what each part summed, [part][block of images][R E][lane] -> (B, R, E).
inline void gather(vec* sums, idx parts, const Sizes& z, float* out) {
    const idx RE = z.R * z.E, n = blocks_of(z) * RE;
    for (idx p = 1; p < parts; ++p)
        for (idx k = 0; k < n; ++k) sums[k] += sums[p * n + k];
    for (idx b = 0; b < z.B; b += VL)
        from_lanes(sums + b / VL * RE, RE, std::min<idx>(VL, z.B - b), RE, out + b * RE);
}

}  // namespace
