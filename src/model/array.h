// Holds a tensor as a plain value: its shape and its elements in row-major order. Elements are
// float64, which represents every value of every dtype of a case exactly. Copies share the
// elements.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace distgrad {

using Shape = std::vector<std::int64_t>;

inline std::int64_t element_count(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t s : shape) n *= s;
  return n;
}

class Array {
 public:
  Array() : Array(Shape{0}, {}) {}
  Array(Shape shape, std::vector<double> values)
      : shape_(std::move(shape)),
        owned_(std::make_shared<const std::vector<double>>(std::move(values))) {
    data_ = owned_->data();
  }
  // Views elements that live elsewhere (shared memory); `keeper` keeps them alive.
  Array(Shape shape, const double* data, std::shared_ptr<const void> keeper)
      : shape_(std::move(shape)), keeper_(std::move(keeper)), data_(data) {}
  static Array scalar(double value) { return Array(Shape{}, {value}); }

  const Shape& shape() const { return shape_; }
  std::int64_t size() const { return element_count(shape_); }
  std::span<const double> values() const { return {data_, static_cast<std::size_t>(size())}; }
  double operator[](std::int64_t i) const { return data_[i]; }

 private:
  Shape shape_;
  std::shared_ptr<const std::vector<double>> owned_;
  std::shared_ptr<const void> keeper_;
  const double* data_ = nullptr;
};

}  // namespace distgrad
