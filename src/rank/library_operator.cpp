#include "rank/library_operator.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "model/subject_text.h"
#include "rank/backends/torch_connection.h"

namespace distgrad {
namespace {

using c10::IValue;

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool names_op(std::string_view n) {
  return is_one_of(n, {"op", "reduce_op", "reduceOp", "reduction"});
}
bool names_group(std::string_view n) {
  return is_one_of(n, {"group", "group_name", "process_group", "pg"});
}
bool names_root_in_group(std::string_view n) {
  return is_one_of(n, {"root", "group_src", "group_dst"});
}
bool names_global_root(std::string_view n) { return is_one_of(n, {"src", "dst"}); }
bool names_dim(std::string_view n) {
  return is_one_of(n, {"dim", "axis", "gather_dim", "scatter_dim"});
}
bool names_size(std::string_view n) { return is_one_of(n, {"group_size", "world_size"}); }
bool names_splits(std::string_view n) { return is_one_of(n, {"splits", "split_sizes"}); }

c10::OperatorHandle load(const std::string& subject) {
  const SubjectPart part = read_part(subject);
  const std::string &file = part.place, &name = part.name;
  // dlopen would look for a name without a slash in the system's folders.
  const std::string path = file.find('/') == std::string::npos ? "./" + file : file;
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    throw UnusableOperator(subject + ": " + dlerror());
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  if (op) return *op;
  std::string text = subject + ": " + file + " registers no operator " + name;
  const std::string scope = name.substr(0, name.find("::") + 2);
  std::string others;
  for (const c10::OperatorName& known : c10::Dispatcher::singleton().getAllOpNames())
    if (known.name.starts_with(scope)) others += (others.empty() ? "" : ", ") + known.name;
  throw UnusableOperator(others.empty() ? text : text + "; there is " + others);
}

// Returns the op in the parameter's type: "sum", a number, or torch's object.
IValue op_value(const c10::Argument& argument, ReduceOp op) {
  if (argument.type()->kind() == c10::TypeKind::StringType) return std::string(name_of(op));
  if (argument.type()->kind() == c10::TypeKind::IntType)
    return static_cast<std::int64_t>(torch_op(op).op_);
  return IValue(c10::make_intrusive<c10d::ReduceOp>(torch_op(op)));
}

IValue group_value(const c10::Argument& argument, Connection& connection) {
  const auto group = c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(
      &connection.process_group());
  const std::string& name = group->getGroupName();
  static std::set<std::string> registered;  // a rank's groups live as long as the rank
  if (registered.insert(name).second) c10d::register_process_group(name, group);
  if (argument.type()->kind() != c10::TypeKind::StringType) return group;
  return name;
}

std::vector<std::int64_t> sizes(const CollectiveCall& call, const Call& by,
                                const at::Tensor& operand) {
  if (!call.splits.empty()) return {call.splits[0].begin(), call.splits[0].end()};
  return std::vector<std::int64_t>(static_cast<std::size_t>(by.size),
                                   operand.size(call.dim.value_or(0)) / by.size);
}

// Copies, so that an in-place operator changes no other step.
at::Tensor private_copy(const at::Tensor& operand) { return operand.clone(); }

at::Tensor joined(const IValue& result, const CollectiveCall& call) {
  if (result.isTensor()) return result.toTensor();
  if (result.isTensorList()) {
    const std::vector<at::Tensor> parts = result.toTensorVector();
    return traits(call.kind).joins() && !call.dim ? at::stack(parts)
                                                  : at::cat(parts, call.dim.value_or(0));
  }
  throw std::runtime_error("it returns neither a tensor nor a list of tensors");
}

// Returns what an operator without a dim gives, ranks' tensors one after the other or stacked, in
// the form that the step asks for.
at::Tensor as_asked(const at::Tensor& x, const CollectiveCall& call, const at::Tensor& operand,
                    std::int64_t ranks) {
  if (!traits(call.kind).joins() || operand.dim() == 0) return x;
  const bool is_stacked = x.dim() == operand.dim() + 1 && x.size(0) == ranks;
  const bool is_joined = x.dim() == operand.dim() && x.size(0) == ranks * operand.size(0);
  if (!call.dim && is_joined) return x.unflatten(0, {ranks, operand.size(0)});
  return call.dim == 0 && is_stacked ? x.flatten(0, 1) : x;
}

// Returns zeros, whatever x holds, that stay in its graph.
at::Tensor zeros_attached(const at::Tensor& x) {
  return at::where(at::zeros_like(x, x.options().dtype(at::kBool).requires_grad(false)), x,
                   at::zeros({}, x.options().requires_grad(false)));
}

}  // namespace

LibraryOperator::LibraryOperator(const std::string& subject)
    : name_(read_part(subject).name),
      op_(load(subject)),
      shares_operand_(read_part(subject).mode == "shared") {
  bool has_operand = false;
  for (const c10::Argument& argument : schema().arguments()) {
    const std::string_view name = argument.name();
    const bool is_tensor = argument.type()->kind() == c10::TypeKind::TensorType;
    const bool known = names_op(name) || names_group(name) || names_root_in_group(name) ||
                       names_global_root(name) || names_dim(name) || names_size(name) ||
                       names_splits(name) || name == "rank" || name == "factor";
    if (is_tensor && !has_operand)
      has_operand = true;
    else if (!known && !argument.default_value())
      throw UnusableOperator(
          subject + ": what to pass for " + argument.name() + " is not known; the schema is " +
          c10::toString(schema()) +
          ". Register an operator whose parameters have names that docs/your-code.md lists");
  }
  if (!has_operand)
    throw UnusableOperator(subject + ": it takes no tensor; the schema is " +
                           c10::toString(schema()));
}

std::string LibraryOperator::why_not_offered(const CollectiveCall& call,
                                             bool is_whole_world) const {
  const auto has = [&](bool (*names)(std::string_view)) {
    const auto& arguments = schema().arguments();
    return std::any_of(arguments.begin(), arguments.end(),
                       [&](const c10::Argument& a) { return names(a.name()); });
  };
  const CollectiveTraits& t = traits(call.kind);
  const auto lacks = [&](const std::string& what) {
    return name_ + " has no parameter for the " + what;
  };
  if (t.takes_op && call.op != ReduceOp::kSum && !has(names_op)) return lacks("op");
  if (t.takes_op && call.op == ReduceOp::kPremulSum &&
      !has([](std::string_view n) { return n == "factor"; }))
    return lacks("factor");
  if (!is_whole_world && !has(names_group)) return lacks("group");
  if (t.takes_root && call.root != 0 && !has(names_root_in_group) && !has(names_global_root))
    return lacks("root");
  if (t.takes_dim && call.dim.value_or(0) != 0 && !has(names_dim)) return lacks("dim");
  if (!call.splits.empty() && (!has(names_splits) || t.exchanges())) return lacks("splits");
  if (t.takes_pairs) return name_ + " cannot be given pairs";
  return {};
}

at::Tensor LibraryOperator::operator()(const Call& call, Connection& connection,
                                       const std::vector<int>& ranks,
                                       const at::Tensor& operand) const {
  const CollectiveCall& spec = *call.spec;
  torch::jit::Stack stack;
  bool given = false;
  for (const c10::Argument& argument : schema().arguments()) {
    const std::string_view name = argument.name();
    if (!given && argument.type()->kind() == c10::TypeKind::TensorType) {
      stack.emplace_back(shares_operand_ ? operand : private_copy(operand));
      given = true;
    } else if (names_op(name))
      stack.push_back(op_value(argument, spec.op));
    else if (name == "factor")
      stack.emplace_back(spec.factor);
    else if (names_group(name))
      stack.push_back(group_value(argument, connection));
    else if (names_root_in_group(name))
      stack.emplace_back(static_cast<std::int64_t>(spec.root));
    else if (names_global_root(name))
      stack.emplace_back(static_cast<std::int64_t>(ranks[static_cast<std::size_t>(spec.root)]));
    else if (names_dim(name))
      stack.emplace_back(static_cast<std::int64_t>(spec.dim.value_or(0)));
    else if (names_size(name))
      stack.emplace_back(static_cast<std::int64_t>(call.size));
    else if (name == "rank")
      stack.emplace_back(static_cast<std::int64_t>(connection.rank()));
    else if (names_splits(name))
      stack.emplace_back(sizes(spec, call, operand));
    else
      stack.push_back(*argument.default_value());
  }
  op_.callBoxed(stack);
  if (stack.empty()) throw std::runtime_error(name_ + " returns nothing");
  const at::Tensor result = as_asked(joined(stack[0], spec), spec, operand, call.size);
  return traits(spec.kind).only_on_root && connection.rank() != spec.root ? zeros_attached(result)
                                                                          : result;
}

}  // namespace distgrad
