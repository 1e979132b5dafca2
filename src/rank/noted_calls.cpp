#include "rank/noted_calls.h"

#include <ATen/record_function.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace distgrad {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostRecent = 4;
constexpr std::string_view kPrefix = "c10d::";

struct Watched {
  std::string_view op, kind;
  int operand;  // which input holds it; -1: none
  bool sizes_agree, has_op, has_root;
};

constexpr Watched kWatched[] = {
    {"allreduce_", "all_reduce", 0, true, true, false},
    {"allgather_", "all_gather", 1, true, false, false},
    {"_allgather_base_", "all_gather", 1, true, false, false},
    {"reduce_scatter_", "reduce_scatter", 1, true, true, false},
    {"_reduce_scatter_base_", "reduce_scatter", 1, true, true, false},
    {"alltoall_", "all_to_all", 1, false, false, false},
    {"alltoall_base_", "all_to_all", 1, false, false, false},
    {"broadcast_", "broadcast", 0, true, false, true},
    {"reduce_", "reduce", 0, true, true, true},
    {"gather_", "gather", 1, true, false, true},
    {"scatter_", "scatter", 0, true, false, true},
    {"barrier", "barrier", -1, false, false, false},
    {"send", "send", 0, false, false, true},
    {"recv_", "recv", 0, false, false, true},
};

const Watched* watched(std::string_view op) {
  for (const Watched& w : kWatched)
    if (w.op == op) return &w;
  return nullptr;
}

template <class T>
c10::intrusive_ptr<T> object_in(c10::ArrayRef<const c10::IValue> values) {
  const auto& type = c10::getCustomClassType<c10::intrusive_ptr<T>>();
  for (const c10::IValue& value : values)
    if (value.isCustomClass() && *value.type() == *type) return value.toCustomClass<T>();
  return {};
}

std::optional<std::int64_t> first_integer(c10::ArrayRef<const c10::IValue> values) {
  for (const c10::IValue& value : values)
    if (value.isInt()) return value.toInt();
  return std::nullopt;
}

std::string op_name(const c10d::ReduceOp& op) {
  constexpr std::string_view kNames[] = {"sum",  "avg", "product", "min",       "max",
                                         "band", "bor", "bxor",    "premul_sum"};
  const auto index = static_cast<std::size_t>(op.op_);
  return std::string(index < std::size(kNames) ? kNames[index] : "");
}

void add_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) tensors.push_back(value.toTensor());
  if (!value.isList()) return;
  for (const c10::IValue& item : value.toListRef()) add_tensors(item, tensors);
}

// As ranks/noting.py has it: of several of one shape, how many come first.
void add_operand(const c10::IValue& value, Json& call) {
  std::vector<at::Tensor> tensors;
  add_tensors(value, tensors);
  if (tensors.empty()) return;
  const at::IntArrayRef first = tensors[0].sizes();
  std::vector<std::int64_t> shape = first.vec();
  std::int64_t elements = 0;
  for (const at::Tensor& t : tensors) elements += t.numel();
  if (std::any_of(tensors.begin(), tensors.end(),
                  [&](const at::Tensor& t) { return t.sizes() != first; }))
    shape = {elements};
  else if (tensors.size() > 1)
    shape.insert(shape.begin(), static_cast<std::int64_t>(tensors.size()));
  call["dtype"] = c10::getDtypeNames(tensors[0].scalar_type()).first;
  call["shape"] = shape;
}

NotedCalls* notes = nullptr;

struct Entered : at::ObserverContext {
  explicit Entered(std::uint64_t n) : number(n) {}
  std::uint64_t number;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (std::strncmp(function.name(), kPrefix.data(), kPrefix.size()) != 0) return nullptr;
  const std::uint64_t number =
      notes->enter(std::string(function.name()).substr(kPrefix.size()), function.inputs());
  return number == 0 ? nullptr : std::make_unique<Entered>(number);
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context) notes->follow(static_cast<Entered*>(context)->number, function.outputs());
}

}  // namespace

NotedCalls& NotedCalls::on(Board& board, int rank) {
  if (notes) return *notes;
  ::signal(SIGUSR1, SIG_IGN);
  notes = new NotedCalls(board, rank);  // works may outlive all else
  at::addGlobalCallback(at::RecordFunctionCallback(begin, end)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
  notes->write("");
  return *notes;
}

void NotedCalls::know(const c10d::ProcessGroup& group, const std::vector<int>& ranks) {
  KnownGroup known{"", ranks};
  for (const int rank : ranks) known.name += (known.name.empty() ? "" : ",") + std::to_string(rank);
  const std::lock_guard lock(mutex_);
  groups_.try_emplace(&group, std::move(known));
}

void NotedCalls::begin_case() {
  const std::lock_guard lock(mutex_);
  note_.waits = 0;
}

std::uint64_t NotedCalls::enter(const std::string& op, c10::ArrayRef<const c10::IValue> inputs) {
  const Watched* what = watched(op);
  const auto group = what ? object_in<c10d::ProcessGroup>(inputs) : nullptr;
  if (!group) return 0;
  const std::lock_guard lock(mutex_);
  const auto known = groups_.find(group.get());
  if (known == groups_.end()) return 0;
  const auto& [name, ranks] = known->second;
  Json call = {{"kind", what->kind},
               {"op", ""},
               {"dtype", ""},
               {"shape", Json::array()},
               {"sizes_agree", what->sizes_agree},
               {"root", -1},
               {"step", slot_.step.load()},
               {"in_backward", slot_.phase == Phase::kBackward},
               {"place", ""},
               {"group", name},
               {"ranks", ranks},
               {"is_between_two", false}};
  if (what->operand >= 0) add_operand(inputs[static_cast<std::size_t>(what->operand)], call);
  if (const auto reduce = what->has_op ? object_in<c10d::ReduceOp>(inputs) : nullptr)
    call["op"] = op_name(*reduce);
  if (const auto root = what->has_root ? first_integer(inputs) : std::nullopt;
      root && *root >= 0 && *root < static_cast<std::int64_t>(ranks.size()))
    call["root"] = ranks[static_cast<std::size_t>(*root)];
  const bool is_send = what->kind == "send";
  if (is_send || what->kind == "recv") {
    // Counted like a collective of the two that exchange it.
    const int own = ranks[static_cast<std::size_t>(group->getRank())], other = call["root"];
    const int from = is_send ? own : other, to = is_send ? other : own;
    call["group"] = name + " " + std::to_string(from) + "->" + std::to_string(to);
    call["ranks"] = {std::min(own, other), std::max(own, other)};
  }
  const std::string key = call["group"];
  call["number"] = ++entered_[key];
  std::deque<std::string>& recent = recent_[key];
  recent.push_back(call.dump());
  if (recent.size() > kMostRecent) recent.pop_front();
  call["recent"] = Json::array();
  for (const std::string& text : recent) call["recent"].push_back(Json::parse(text));
  call["entered"] = Json::array();
  for (const auto& [entered, calls] : entered_)
    call["entered"].push_back({{"group", entered}, {"calls", calls}});
  write(call.dump());
  note_.waits = 1;
  return ++count_;
}

void NotedCalls::follow(std::uint64_t number, const std::vector<c10::IValue>& outputs) {
  const auto work =
      object_in<c10d::Work>(c10::ArrayRef<const c10::IValue>(outputs.data(), outputs.size()));
  if (!work) return leave(number);
  try {
    work->getFuture()->addCallback([this, number](c10::ivalue::Future& done) {
      if (!done.hasError()) leave(number);  // else the note says that it has failed in it
    });
  } catch (const std::exception&) {  // works of messages have no future
  }
}

void NotedCalls::leave(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (number == count_) note_.waits = 0;
}

// A text that is too long is left out.
void NotedCalls::write(const std::string& text) {
  const std::size_t size = text.size() < sizeof note_.text ? text.size() : 0;
  note_.version.fetch_add(1);  // odd: being written
  std::memcpy(note_.text, text.data(), size);
  note_.text[size] = '\0';
  note_.version.fetch_add(1);
}

}  // namespace distgrad
