// A bounded map from texts: what was not asked for in a long time goes. Values stand in two
// generations; when the younger one is full it becomes the elder one, whose values go unless they
// are asked for again.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

namespace distgrad {

template <class Value>
class RecentlyUsed {
 public:
  // Between `capacity` and twice as many values are kept.
  explicit RecentlyUsed(std::size_t capacity) : capacity_(capacity) {}

  // Null: not there. Valid until the next call.
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
