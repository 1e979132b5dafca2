#include "model/mesh_order.h"

#include <algorithm>
#include <map>

namespace distgrad {

bool is_order_of(const std::vector<std::string>& order, const std::vector<MeshAxis>& mesh) {
  return order.size() == mesh.size() &&
         std::ranges::is_permutation(order, mesh, {}, {}, &MeshAxis::name);
}

std::vector<int> places_in_order(const std::vector<MeshAxis>& mesh,
                                 const std::vector<std::string>& order) {
  if (!is_order_of(order, mesh) || std::ranges::equal(order, mesh, {}, {}, &MeshAxis::name))
    return {};
  std::map<std::string, int> sizes, strides;  // by axis, over the processes
  for (const MeshAxis& axis : mesh) sizes[axis.name] = axis.size;
  int stride = 1;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    strides[*axis] = stride;
    stride *= sizes[*axis];
  }
  std::vector<int> places(static_cast<std::size_t>(stride));
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    int rest = static_cast<int>(rank);
    for (auto axis = mesh.rbegin(); axis != mesh.rend(); ++axis) {
      places[rank] += rest % axis->size * strides[axis->name];
      rest /= axis->size;
    }
  }
  return places;
}

}  // namespace distgrad
