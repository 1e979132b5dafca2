// Maps texts to values and drops what was not asked for in a long time. Values lie in two
// generations: a full younger one becomes the elder one, whose values go unless they are asked for
// again.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

namespace distgrad {

template <class Value>
class RecentlyUsed {
 public:
  // Keeps between `capacity` and twice as many values.
  explicit RecentlyUsed(std::size_t capacity) : capacity_(capacity) {}

  // Returns null where there is no such value. The pointer is valid until the next call.
  Value* find(const std::string& key) {
    if (const auto found = younger_.find(key); found != younger_.end()) return &found->second;
    const auto found = elder_.find(key);
    if (found == elder_.end()) return nullptr;
    Value value = std::move(found->second);
    elder_.erase(found);
    return &put(key, std::move(value));
  }

  Value& put(const std::string& key, Value value) {
    if (younger_.size() >= capacity_) {
      elder_ = std::move(younger_);
      younger_ = {};
    }
    return younger_.insert_or_assign(key, std::move(value)).first->second;
  }

  std::size_t size() const { return younger_.size() + elder_.size(); }

 private:
  std::size_t capacity_;
  std::unordered_map<std::string, Value> younger_, elder_;
};

}  // namespace distgrad
