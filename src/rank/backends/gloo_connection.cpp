#include "rank/backends/gloo_connection.h"

#include "rank/backends/gloo.h"

namespace distgrad {

std::unique_ptr<Connection> make_gloo_connection(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                 int size, const std::string& name,
                                                 const BackendTraits& traits, at::Device device) {
  TorchEnd end{store,
               rank,
               size,
               name,
               device,
               c10d::ProcessGroup::BackendType::GLOO,
               connect_gloo(store, rank, size)};
  return make_torch_connection(std::move(end), traits);
}

}  // namespace distgrad
