// What the machine can do at most: multiply-adds on registers, and bytes read.
#pragma once

#include <cstdint>

#include "headwise/tensor/shape.hpp"

namespace headwise::bench {

enum class Instructions { sse2, avx2, avx512 };

/// Whether this machine has them.
bool supports(Instructions set);

/// Multiply-adds on registers alone, in FLOP/s of all threads together while they run at the same
/// time: the best of `attempts` of about a millisecond.
double register_flops(Instructions set, bool single_precision, Index threads, int attempts);

/// The same with the widest that this machine has, on num_threads() threads. Remembered: see
/// highest_flops.
double measure_peak(bool single_precision);

/// The run's roof: the highest of what measure_peak and note_flops have seen so far.
double highest_flops(bool single_precision);

/// A rate that something reached: no roof is below it.
void note_flops(bool single_precision, double flops_per_second);

/// Bytes a second that all threads together read from `bytes` bytes, over and over: the best of a
/// few passes.
double read_bandwidth(double bytes);

}  // namespace headwise::bench
