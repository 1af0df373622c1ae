// The program as a partner in a comparison: it measures what it is asked for, one line at a time.
#pragma once

#include <iosfwd>

namespace headwise::bench {

/// Reads a request a line and answers each with a line of JSON, until the input ends:
///
///   FAMILY VALUE..         {"seconds": median, "best": .., "runs": .., "flops": .., "bytes": ..,
///                          "tokens": .., "peak_bytes": ..}, the figures of one run
///   check FAMILY VALUE..   {"right": true or false}
///   peak                   {"flops_per_second": ..}: registers, float
///   bandwidth BYTES        {"bytes_per_second": ..}
///   about                  version, compiler, instruction sets, threads, every shape and product
///
/// A case is run once before it is timed, then for at least `seconds` and at least once. A request
/// that it does not know, or whose case throws, is answered with {"error": ".."}.
void take_turns(std::istream& in, std::ostream& out, double seconds);

}  // namespace headwise::bench
