#include "rank/runner.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "model/libraries.h"
#include "model/subject_text.h"
#include "rank/backends/plugin.h"
#include "rank/backends/self_test.h"
#include "rank/backward_watch.h"
#include "rank/compiled_program.h"
#include "rank/driven_call.h"
#include "rank/expression/evaluation_scope.h"
#include "rank/group_connections.h"
#include "rank/input_values.h"
#include "rank/library_operator.h"
#include "rank/mutated_calls.h"
#include "rank/noted_calls.h"
#include "rank/rank_call.h"

namespace distgrad {
namespace {

// Collects what torch warns about instead of printing it.
class WarningCollector : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    std::string text(warning.msg());
    if (std::find(texts.begin(), texts.end(), text) == texts.end())
      texts.push_back(std::move(text));
  }
  std::vector<std::string> texts;
};

// Decides by the text: Gloo, NCCL, CUDA and c10d report a connection or a device, rules and
// operators the program. A timeout is always c10d's.
ErrorKind kind_of(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  const bool transport = says("gloo/") || says("Connection ") || says("NCCL error") ||
                         says("CUDA error") || says("CUDA out of memory") ||
                         dynamic_cast<const c10::DistError*>(&error) != nullptr;
  if (transport && (says("timed out") || says("operation timeout"))) return ErrorKind::kHang;
  return transport ? ErrorKind::kBackend : ErrorKind::kException;
}

}  // namespace

class Runner::Impl {
 public:
  Impl(int rank, int world_size, Board* board)
      : rank_(rank), world_size_(world_size), board_(board), slot_(board->ranks[rank]) {
    world_.resize(world_size);
    std::iota(world_.begin(), world_.end(), 0);
  }

  RankResult run(const RunRequest& request, const ExpectedValues* expected);

 private:
  class Case;

  // Connects at the first case. A rank serves one backend on one device for its life.
  void use_backend(const RunRequest& request) {
    if (!connections_)
      connections_ = std::make_unique<GroupConnections>(rank_, world_size_, board_, request.backend,
                                                        request.device);
    TORCH_CHECK(connections_->backend() == request.backend, "this rank is connected by ",
                connections_->backend(), ", not by ", request.backend);
  }
  GroupConnections& connections() { return *connections_; }

  void enter(int step, Phase phase) {
    slot_.step.store(step, std::memory_order_relaxed);
    slot_.phase.store(phase, std::memory_order_relaxed);
    step_ = step;
  }

  RankError error(ErrorKind kind, const std::string& message) const {
    RankError e;
    e.kind = kind;
    e.rank = rank_;
    e.message = message;
    if (program_ && step_ >= 0 && step_ < static_cast<int>(program_->steps.size()))
      e.step = program_->steps[step_].name;
    e.in_backward = !e.step.empty() && slot_.phase == Phase::kBackward;
    return e;
  }

  int rank_;
  int world_size_;
  Board* board_;
  RankSlot& slot_;
  std::unique_ptr<GroupConnections> connections_;
  std::vector<int> world_;
  std::map<std::string, std::unique_ptr<LibraryOperator>> operators_;  // by subject
  NotedCalls* notes_ = nullptr;       // set once there was an operator of the user's
  const Program* program_ = nullptr;  // of the case that runs
  int step_ = -1;
};

// Runs one case on this rank, from inputs to gradients.
class Runner::Impl::Case {
 public:
  Case(Impl& runner, const RunRequest& request, const ExpectedValues* expected, RankResult& result)
      : runner_(runner),
        request_(request),
        expected_(expected ? *expected : kNothingExpected),
        program_(request.program),
        observes_(request.observe && !inner_of_gradient_norm(program_.loss)),
        result_(result) {}

  void run() {
    if (const std::string missing = not_offered(); !missing.empty()) {
      result_.skipped = missing;
      return;
    }
    is_noted_ = has_library_operator();
    if (runner_.notes_) runner_.notes_->begin_case(is_noted_);
    runner_.use_backend(request_);
    if (is_mutant(request_.subject))
      mutated_.emplace(program_, request_.subject, runner_.rank_, runner_.connections());
    if (request_.drive) return drive();
    const CompiledProgram compiled(program_, program_.dtype);
    slots_ = compiled.rank_slots(runner_.rank_);
    make_leaves(compiled);
    const ConstructorDevice on_device(runner_.connections().device());
    std::vector<at::Tensor> reached;
    for (std::size_t i = 0; i < compiled.steps.size(); ++i)
      run_step(compiled.steps[i], static_cast<int>(i), reached);
    runner_.enter(static_cast<int>(compiled.steps.size()), Phase::kForward);
    at::Tensor loss = compiled.loss.evaluate(slots_);
    if (compiled.loss_is_gradient_norm) loss = squared_gradient_norm(loss, reached, leaves());
    result_.loss = loss.item<double>();
    result_.loss_shape = loss.sizes().vec();
    run_backward(std::move(loss), std::move(reached));
    slots_.clear();
    sync_and_collect();
  }

 private:
  std::string not_offered() const {
    const bool differentiates_twice = inner_of_gradient_norm(program_.loss).has_value();
    for (const Step& step : program_.steps) {
      const CollectiveCall* call = step.collective();
      if (!call) continue;
      if (const LibraryOperator* op = library_operator(call->kind)) {
        const bool whole =
            call->group.empty() || members(call->group).size() == runner_.world_.size();
        if (const std::string why = op->why_not_offered(*call, whole); !why.empty()) return why;
        continue;
      }
      const std::string subject = subject_for(request_.subject, call->kind);
      const auto how = rule_of(subject, call->kind, call->op);
      if (how && differentiates_twice && *how != "dispatcher")
        return subject + " has a rule for the gradient, and none for the gradient of that";
      if (how) continue;
      std::string what(traits(call->kind).name);
      if (traits(call->kind).takes_op) what += " " + std::string(name_of(call->op));
      return subject + " does not offer " + what;
    }
    return {};
  }

  const std::vector<int>& members(const std::string& group_name) const {
    const Group* group = group_name.empty() ? nullptr : program_.group_named(group_name);
    return group ? group->partition[group->place_of(runner_.rank_).first] : runner_.world_;
  }

  // Returns the user's operator, loaded at first use, or null if the subject runs this kind
  // otherwise.
  const LibraryOperator* library_operator(CollectiveKind kind) const {
    const std::string subject = subject_for(request_.subject, kind);
    if (!is_foreign_code(subject)) return nullptr;
    auto& known = runner_.operators_[subject];
    if (!known) known = std::make_unique<LibraryOperator>(subject);
    runner_.notes_ = &NotedCalls::on(*runner_.board_, runner_.rank_);
    return known.get();
  }

  bool has_library_operator() const {
    return std::any_of(program_.steps.begin(), program_.steps.end(), [&](const Step& step) {
      return step.collective() && library_operator(step.collective()->kind);
    });
  }

  // If the user's code calls collectives, ours beside them are noted, too.
  Connection& connection(const std::vector<int>& ranks) const {
    Connection& connection = runner_.connections().of(ranks);
    if (is_noted_) runner_.notes_->know(connection.process_group(), ranks);
    connection.call_through_group(is_noted_);
    return connection;
  }

  // Returns null if nobody watches.
  std::shared_ptr<WatchedCall> watched(const Step& step, const at::Tensor& operand) {
    if (!observes_) return nullptr;
    return watched_.emplace_back(std::make_shared<WatchedCall>(step.name, operand));
  }

  // Attaches every rank's operand to the graph, whatever it is made of on this rank. Otherwise the
  // other ranks would wait in backward forever.
  at::Tensor call_library(const LibraryOperator& op, const CompiledStep& step, int index,
                          const at::Tensor& operand) {
    const CollectiveCall& spec = *step.step->collective();
    const std::vector<int>& ranks = members(spec.group);
    at::Tensor own = step.depends_on_gradient ? operand : operand.detach();
    if (step.depends_on_gradient && !own.requires_grad())
      own = own.detach().clone().requires_grad_(true);
    const auto watch = watched(*step.step, own);
    at::Tensor result = op({&spec, static_cast<int>(ranks.size())}, connection(ranks), ranks, own);
    if (watch) watch_graph(watch, result);
    if (result.requires_grad())
      result.register_hook(
          [this, index](const at::Tensor&) { runner_.enter(index, Phase::kBackward); });
    return result;
  }

  void make_leaves(const CompiledProgram& compiled) {
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      const Input& input = program_.inputs[i];
      at::Tensor value =
          input.is_local() ? local_value(program_, input, runner_.rank_)
                           : laid_out(program_, input, full_value(program_, input))[runner_.rank_];
      value = value.detach().to(runner_.connections().device());
      value = own_copy(std::move(value));
      if (input.requires_grad) {
        value.requires_grad_(true);
        leaves_.emplace_back(&input, value);
      }
      slots_[compiled.input_slots[i]] = std::move(value);
    }
  }

  // Copies a shard, or a rank's part of a full tensor, since a view would keep the whole in memory.
  static at::Tensor own_copy(at::Tensor value) {
    const bool is_own = value.storage().use_count() == 1 && value.is_contiguous() &&
                        value.storage().nbytes() == value.nbytes();
    return is_own ? value : value.clone(at::MemoryFormat::Contiguous);
  }

  // Autograd keeps what backward needs. Users' code may have kept less than it needs.
  bool lets_values_go() const { return !is_foreign_code(request_.subject); }

  void run_step(const CompiledStep& step, int index, std::vector<at::Tensor>& reached) {
    runner_.enter(index, Phase::kForward);
    at::Tensor value = step.text.evaluate(slots_);
    if (step.step->collective()) {
      value = call(step, index, value);
      result_.steps.push_back(array_of(value));
      if (lets_values_go()) beside_expected(result_.steps.size() - 1);
      if (step.reaches_loss && value.requires_grad()) reached.push_back(value);
    }
    slots_[step.slot] = std::move(value);
    if (lets_values_go())
      for (const int slot : step.last_used) slots_[slot] = c10::IValue();
  }

  // Replaces a value that nobody writes to any more by the equal expected one.
  void beside_expected(std::size_t step) {
    Array& own = result_.steps[step];
    own = expected_or(std::move(own), expected_.steps, step, runner_.rank_);
  }

  at::Tensor call(const CompiledStep& step, int index, const at::Tensor& operand) {
    const CollectiveCall& spec = *step.step->collective();
    if (const LibraryOperator* op = library_operator(spec.kind))
      return call_library(*op, step, index, operand);
    const std::vector<int>& ranks = members(spec.group);
    const auto watch = watched(*step.step, operand);
    auto site = std::make_shared<CallSite>();
    site->call = Call{&spec, static_cast<int>(ranks.size())};
    site->connection = &connection(ranks);
    site->enter_backward = [this, index] { runner_.enter(index, Phase::kBackward); };
    site->watch = watch;
    const std::string subject = subject_for(request_.subject, spec.kind);
    const std::string_view how = *rule_of(subject, spec.kind, spec.op, torch_version());
    if (how == "dispatcher") {
      const at::Tensor output =
          collective(spec.kind).in_place(site->call, *site->connection, operand);
      if (watch) watch_graph(watch, output);
      return output;
    }
    site->keeps_values = mutated_ || how != "native" || wants_values(spec);
    site->backward = how == "native"                  ? native_backward
                     : how == "partial_sums_off_root" ? partial_sums_backward
                                                      : rule_backward(*rule_named(how));
    if (mutated_) mutated_->prepare(site, *step.step, operand);
    // The anchor attaches the call on every rank or on none, whatever the operand is made of here.
    // Otherwise the other ranks would wait in backward forever.
    at::Tensor anchor = at::zeros({}, operand.options().requires_grad(false));
    anchor.requires_grad_(step.depends_on_gradient);
    const at::Tensor output =
        call_on_rank(site, step.depends_on_gradient ? operand : operand.detach(), anchor);
    if (mutated_) mutated_->note(site, *step.step, output);
    return output;
  }

  // Runs the case's one call, forward and backward, once for each cotangent. Every rank reaches
  // every backward in the same order, as in a case, whatever it gives.
  void drive() {
    const DrivenCall driven(program_, *request_.drive);
    const ConstructorDevice on_device(runner_.connections().device());
    CompiledStep step;
    step.step = &driven.step();
    step.depends_on_gradient = true;
    const at::Tensor operand = driven.operand_on(runner_.rank_).to(runner_.connections().device());
    std::vector<at::Tensor> given;
    for (const at::Tensor& cotangent : driven.cotangents_on(runner_.rank_)) {
      runner_.enter(0, Phase::kForward);
      const at::Tensor leaf =
          laid_in_memory(operand, driven.operand_strides(runner_.rank_)).requires_grad_(true);
      const at::Tensor output = call(step, 0, leaf);
      if (given.empty()) result_.steps.push_back(array_of(output));
      if (output.requires_grad())
        output.backward(
            laid_in_memory(cotangent.to(output.device()), driven.cotangent_strides(runner_.rank_)));
      // Copies, since the next backward may write to the same memory.
      given.push_back(leaf.grad().defined() ? leaf.grad().clone(at::MemoryFormat::Contiguous)
                                            : at::Tensor());
    }
    result_.gradients.push_back(optional_array(stacked(given, operand)));
  }

  // Returns an undefined tensor if all parts are undefined; else undefined parts are zeros.
  static at::Tensor stacked(std::vector<at::Tensor> parts, const at::Tensor& like) {
    if (std::ranges::none_of(parts, [](const at::Tensor& x) { return x.defined(); })) return {};
    for (at::Tensor& x : parts)
      if (!x.defined()) x = at::zeros_like(like, at::MemoryFormat::Contiguous);
    return at::stack(parts);
  }

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> leaves;
    for (const auto& [input, leaf] : leaves_) leaves.push_back(leaf);
    return leaves;
  }

  void run_backward(at::Tensor loss, std::vector<at::Tensor> reached) {
    const at::Tensor end = anchored(loss, reached);
    if (!end.requires_grad()) return;  // counts as missing gradients
    const at::Tensor start = at::full_like(end.detach(), request_.weights[runner_.rank_]);
    if (lets_values_go()) {
      loss.reset();
      reached.clear();
      slots_.clear();
    }
    end.backward(start);
  }

  void sync_and_collect() {
    runner_.enter(static_cast<int>(program_.steps.size()), Phase::kSync);
    if (!lets_values_go())
      for (std::size_t step = 0; step < result_.steps.size(); ++step) beside_expected(step);
    for (auto& [input, leaf] : leaves_) {
      at::Tensor gradient = leaf.grad();
      if (observes_) result_.shares.push_back(optional_array(gradient));
      for (const auto& [axis, how] : input->sync) {
        const std::vector<int>& ranks = members(axis);
        gradient = summed_where_present(connection(ranks), gradient, leaf);
        // This happens even if no rank of this group has a gradient: along the next axis others may
        // have one, and wait for this rank.
        if (gradient.defined() && how == Input::Sync::kMean)
          gradient.div_(static_cast<double>(ranks.size()));
      }
      result_.gradients.push_back(optional_array(gradient));
      if (auto& own = result_.gradients.back())
        own = expected_or(std::move(*own), expected_.gradients, result_.gradients.size() - 1,
                          runner_.rank_);
    }
    result_.observed = observed_of(watched_);
  }

  static std::optional<Array> optional_array(const at::Tensor& x) {
    return x.defined() ? std::optional<Array>(array_of(x)) : std::nullopt;
  }

  // Counts a missing gradient as zeros, as DDP does; returns undefined if no rank has one. It takes
  // one exchange, so that no rank need know beforehand whether the others have one.
  static at::Tensor summed_where_present(Connection& group, const at::Tensor& gradient,
                                         const at::Tensor& leaf) {
    const at::Tensor mine = gradient.defined() ? gradient : at::zeros_like(leaf.detach());
    const at::Tensor present = at::full({1}, gradient.defined() ? 1 : 0, mine.options());
    const at::Tensor total =
        group.all_reduce(at::cat({mine.reshape({-1}), present}), ReduceOp::kSum);
    if (total[-1].item<double>() == 0) return {};
    return total.narrow(0, 0, mine.numel()).reshape(mine.sizes());
  }

  inline static const ExpectedValues kNothingExpected;

  Impl& runner_;
  const RunRequest& request_;
  const ExpectedValues& expected_;
  const Program& program_;
  const bool observes_;  // false for a loss made of gradients, whose backward runs twice
  RankResult& result_;
  std::vector<c10::IValue> slots_;
  std::vector<std::pair<const Input*, at::Tensor>> leaves_;
  std::vector<std::shared_ptr<WatchedCall>> watched_;  // by collective step
  std::optional<MutatedCalls> mutated_;
  bool is_noted_ = false;
};

RankResult Runner::Impl::run(const RunRequest& request, const ExpectedValues* expected) {
  RankResult result;
  WarningCollector warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const c10::WarningUtils::WarnAlways always(true);
  enter(-1, Phase::kForward);
  program_ = &request.program;  // set here, as error() needs it when the Case is gone
  try {
    Case(*this, request, expected, result).run();
  } catch (const UnavailableBackend& e) {
    result.skipped = e.what();
  } catch (const UnusableOperator& e) {
    result.error = error(ErrorKind::kSubject, e.what());
  } catch (const InvalidAt& e) {
    result.error = error(ErrorKind::kException, e.what());
  } catch (const c10::Error& e) {
    result.error = error(kind_of(e), e.what_without_backtrace());
  } catch (const std::exception& e) {
    result.error = error(ErrorKind::kException, e.what());
  }
  program_ = nullptr;
  result.warnings = std::move(warnings.texts);
  if (connections_)
    for (const std::string& text : connections_->take_composed()) result.composed.push_back(text);
  slot_.phase.store(Phase::kReply, std::memory_order_relaxed);
  return result;
}

Runner::Runner(int rank, int world_size, Board* board)
    : impl_(std::make_unique<Impl>(rank, world_size, board)) {}
Runner::~Runner() = default;
RankResult Runner::run(const RunRequest& request, const ExpectedValues* expected) {
  return impl_->run(request, expected);
}

}  // namespace distgrad
