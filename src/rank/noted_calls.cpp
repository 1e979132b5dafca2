#include "rank/noted_calls.h"

#include <ATen/record_function.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "protocol/noted_call_json.h"

namespace distgrad {
namespace {

// These equal those in ranks/noting.py.
constexpr std::size_t kMostRecent = 4, kMostGroups = 12, kMostReported = 100;
constexpr std::string_view kPrefix = "c10d::";

struct Watched {
  std::string_view op, kind;
  int operand;  // which input holds it; -1: none
  bool sizes_agree, has_op, has_root;
};

constexpr Watched kWatched[] = {
    {"allreduce_", "all_reduce", 0, true, true, false},
    {"allreduce_coalesced_", "all_reduce", 0, true, true, false},
    {"allgather_", "all_gather", 1, true, false, false},
    {"_allgather_base_", "all_gather", 1, true, false, false},
    {"allgather_coalesced_", "all_gather", 1, true, false, false},
    {"allgather_into_tensor_coalesced_", "all_gather", 1, true, false, false},
    {"reduce_scatter_", "reduce_scatter", 1, true, true, false},
    {"_reduce_scatter_base_", "reduce_scatter", 1, true, true, false},
    {"reduce_scatter_tensor_coalesced_", "reduce_scatter", 1, true, true, false},
    {"alltoall_", "all_to_all", 1, false, false, false},
    {"alltoall_base_", "all_to_all", 1, false, false, false},
    {"broadcast_", "broadcast", 0, true, false, true},
    {"reduce_", "reduce", 0, true, true, true},
    {"gather_", "gather", 1, true, false, true},
    {"scatter_", "scatter", 0, true, false, true},
    {"barrier", "barrier", -1, false, false, false},
    {"monitored_barrier_", "barrier", -1, false, false, false},
    {"send", "send", 0, false, false, true},
    {"recv_", "recv", 0, false, false, true},
    {"recv_any_source_", "recv", 0, false, false, false},
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

// Returns the root or the other end and, for a message, its tag after it.
std::vector<std::int64_t> integers_in(c10::ArrayRef<const c10::IValue> values) {
  std::vector<std::int64_t> integers;
  for (const c10::IValue& value : values)
    if (value.isInt()) integers.push_back(value.toInt());
  return integers;
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

// Sets the operand as ranks/noting.py does. If there are several of one shape, their number comes
// first.
void set_operand(NotedCall& call, const c10::IValue& value) {
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
  call.dtype = c10::getDtypeNames(tensors[0].scalar_type()).first;
  call.shape = std::move(shape);
}

NotedCalls* notes = nullptr;

struct Entered : at::ObserverContext {
  explicit Entered(std::uint64_t n) : number(n) {}
  std::uint64_t number;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (std::strncmp(function.name(), kPrefix.data(), kPrefix.size()) != 0) return nullptr;
  const std::uint64_t number =
      notes->enter(std::string_view(function.name()).substr(kPrefix.size()), function.inputs());
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

void NotedCalls::begin_case(bool is_noted) {
  const std::lock_guard lock(mutex_);
  note_.waits = 0;
  if (is_noted_ && !is_noted) write("");
  is_noted_ = is_noted;
}

std::vector<NotedCall> NotedCalls::take_entered() {
  if (!notes) return {};
  const std::lock_guard lock(notes->mutex_);
  return std::exchange(notes->reported_, {});
}

std::uint64_t NotedCalls::enter(std::string_view op, c10::ArrayRef<const c10::IValue> inputs) {
  const Watched* what = watched(op);
  const auto group = what ? object_in<c10d::ProcessGroup>(inputs) : nullptr;
  const std::lock_guard lock(mutex_);
  if (!group || !is_noted_) return 0;
  NotedCall call;
  call.kind = what->kind;
  call.sizes_agree = what->sizes_agree;
  call.step = slot_.step.load();
  call.in_backward = slot_.phase == Phase::kBackward;
  if (what->operand >= 0) set_operand(call, inputs[static_cast<std::size_t>(what->operand)]);
  if (const auto reduce = what->has_op ? object_in<c10d::ReduceOp>(inputs) : nullptr)
    call.op = op_name(*reduce);
  set_group(call, *group);
  const std::vector<std::int64_t> integers = integers_in(inputs);
  if (what->has_root && !integers.empty() && integers[0] >= 0 &&
      integers[0] < std::ssize(call.ranks))
    call.root = call.ranks[static_cast<std::size_t>(integers[0])];
  const bool is_send = call.kind == "send";
  if (is_send || call.kind == "recv") {
    // A message counts like a collective of the two ranks that exchange it.
    call.is_between_two = call.root < 0;
    call.group += " " + std::to_string(is_send ? rank_ : call.root) + "->" +
                  std::to_string(is_send ? call.root : rank_);
    if (integers.size() > 1) call.group += " " + std::to_string(integers[1]);
    if (!call.is_between_two) call.ranks = {std::min(rank_, call.root), std::max(rank_, call.root)};
  }
  count(call);
  write(write_note(call).dump());
  note_.waits = 1;
  return ++count_;
}

void NotedCalls::set_group(NotedCall& call, const c10d::ProcessGroup& group) const {
  const auto known = groups_.find(&group);
  call.is_between_two = known == groups_.end();
  if (call.is_between_two) return;
  call.group = known->second.name;
  call.ranks = known->second.ranks;
}

// Fills in what depends on other calls, too.
void NotedCalls::count(NotedCall& call) {
  if (!call.is_between_two) {
    const auto found = std::find_if(entered_.begin(), entered_.end(),
                                    [&](const auto& entry) { return entry.first == call.group; });
    call.number = found == entered_.end() ? 1 : found->second + 1;
    if (found != entered_.end()) entered_.erase(found);
    entered_.emplace_back(call.group, call.number);
  }
  if (reported_.size() < kMostReported) reported_.push_back(call);
  if (!call.is_between_two) {
    std::deque<NotedCall>& recent = recent_[call.group];
    recent.push_back(call);
    if (recent.size() > kMostRecent) recent.pop_front();
    call.recent = {recent.begin(), recent.end()};
  }
  call.reported_all = entered_.size() <= kMostGroups;
  for (auto it = entered_.end() - std::min<std::ptrdiff_t>(std::ssize(entered_), kMostGroups);
       it != entered_.end(); ++it)
    call.entered.insert(*it);
}

void NotedCalls::follow(std::uint64_t number, const std::vector<c10::IValue>& outputs) {
  const auto work =
      object_in<c10d::Work>(c10::ArrayRef<const c10::IValue>(outputs.data(), outputs.size()));
  if (!work) return leave(number);
  try {
    work->getFuture()->addCallback([this, number](c10::ivalue::Future& done) {
      if (!done.hasError()) leave(number);  // else the note stays, and says that the call failed
    });
  } catch (const std::exception&) {  // works of messages have no future
  }
}

void NotedCalls::leave(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (number == count_) note_.waits = 0;
}

// Writes an empty text in place of one that is too long.
void NotedCalls::write(const std::string& text) {
  const std::size_t size = text.size() < sizeof note_.text ? text.size() : 0;
  note_.version.fetch_add(1);  // odd: being written
  std::memcpy(note_.text, text.data(), size);
  note_.text[size] = '\0';
  note_.version.fetch_add(1);
}

}  // namespace distgrad
