#include "rank/expression/operators.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <unordered_map>

namespace distgrad {
namespace {

using c10::Argument;
using c10::TypeKind;
using c10::TypePtr;

bool holds_tensor(const TypePtr& type) {
  if (type->kind() == TypeKind::TensorType) return true;
  const auto inner = type->containedTypes();
  return std::any_of(inner.begin(), inner.end(), holds_tensor);
}

bool has_tensor(const std::vector<Argument>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const Argument& argument) { return holds_tensor(argument.type()); });
}

// Returns true for an argument that no expression can or may give, and that has no default.
bool must_be_refused(const Argument& argument) {
  if (argument.default_value()) return false;
  const TypeKind kind = argument.real_type()->kind();
  return kind == TypeKind::DeviceObjType || kind == TypeKind::GeneratorType ||
         kind == TypeKind::LayoutType || kind == TypeKind::StreamObjType ||
         kind == TypeKind::StorageType || kind == TypeKind::QSchemeType;
}

bool has_named_dimensions(const std::string& overload) {
  return overload.find("Dimname") != std::string::npos ||
         overload.find("dimname") != std::string::npos ||
         overload.find("names") != std::string::npos;
}

}  // namespace

bool is_pure(const torch::jit::Operator& op) {
  const c10::FunctionSchema& schema = op.schema();
  if (schema.is_mutable() || schema.is_vararg() || schema.is_varret()) return false;
  if (has_named_dimensions(schema.overload_name())) return false;
  if (!has_tensor(schema.arguments()) && !has_tensor(schema.returns())) return false;
  const auto& arguments = schema.arguments();
  if (std::any_of(arguments.begin(), arguments.end(), must_be_refused)) return false;
  if (std::any_of(arguments.begin(), arguments.end(),
                  [](const Argument& a) { return a.is_out() || a.name() == "generator"; }))
    return false;
  const auto tags = op.getTags();
  return std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_seeded) == tags.end();
}

const Overloads& pure_overloads(const std::string& qualified_name, bool method) {
  static std::unordered_map<std::string, Overloads> cache[2];
  auto [entry, is_new] = cache[method ? 1 : 0].try_emplace(qualified_name);
  if (!is_new) return entry->second;
  for (const auto& op :
       torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(qualified_name))) {
    if (!is_pure(*op)) continue;
    const auto& arguments = op->schema().arguments();
    const bool has_self =
        std::any_of(arguments.begin(), arguments.end(), [](const Argument& argument) {
          return argument.name() == "self" && argument.type()->kind() == TypeKind::TensorType;
        });
    if (!method || has_self) entry->second.push_back(op);
  }
  return entry->second;
}

bool exists_in_torch(const std::string& qualified_name) {
  return !torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(qualified_name)).empty();
}

}  // namespace distgrad
