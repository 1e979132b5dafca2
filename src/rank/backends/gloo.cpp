// Only this file sees Gloo's headers, which the torch wheel lacks (Debian's libgloo-dev has them).
// They are older than the Gloo inside the wheel, and their Store has fewer virtual functions. That
// is safe as long as no Gloo class's vtable is emitted here, which building ProcessGroupGloo from a
// c10d::Store does not do (a test looks with nm).
#define USE_C10D_GLOO 1
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "rank/backends/gloo.h"
#include "rank/backends/meeting.h"

namespace distgrad {

c10::intrusive_ptr<c10d::Backend> connect_gloo(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size) {
  // The driver watches the clock. Gloo's own timeout is only the last resort for a rank left alone.
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::hours(24));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(gloo_interface()));
  options->threads = 2;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), rank, size, options);
}

}  // namespace distgrad
