// bare_gloo RANKS COUNT ELEMENTS is the bare Gloo loop that tools/bench compares distgrad with. It
// prints one JSON object: seconds of the slowest rank for COUNT programs (forward and backward),
// and the largest peak memory of a rank.
#include <cstdio>
#include <cstdlib>

#include "rank/bench/bare_loops.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bare_gloo RANKS COUNT ELEMENTS\n");
    return 2;
  }
  long peak_kib = 0;
  const double seconds = distgrad::bench::bare_gloo_seconds(std::atoi(argv[1]), std::atoi(argv[2]),
                                                            std::atoll(argv[3]), &peak_kib);
  std::printf("{\"wall_s\": %.6f, \"peak_kib\": %ld}\n", seconds, peak_kib);
}
