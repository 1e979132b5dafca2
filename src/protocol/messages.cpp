#include "protocol/messages.h"

#include "base/memory_file.h"
#include "protocol/board.h"
#include "protocol/noted_call_json.h"
#include "protocol/payload.h"
#include "protocol/program_codec.h"

namespace distgrad {
namespace {

// As in program_codec.cpp: writers take structs apart, so that a forgotten member does not compile.

template <class T, class Read>
Decoded<T> decoded(const Frame& frame, Read read) {
  try {
    return {read(parse_header(frame.header)), ""};
  } catch (const BadMessage& bad) {
    return {std::nullopt, bad.what()};
  }
}

Json write_texts(const std::vector<std::string>& texts) { return texts; }

std::vector<std::string> read_texts(const Json& json) {
  std::vector<std::string> texts;
  for (const Json& t : read_list(json)) texts.push_back(read_text(t));
  return texts;
}

Json write_parts(const std::vector<std::optional<Array>>& parts, PayloadWriter& out) {
  Json json = Json::array();
  for (const auto& part : parts) json.push_back(part ? out.array(*part) : Json());
  return json;
}

std::vector<std::optional<Array>> read_parts(const Json& json, const PayloadReader& in) {
  std::vector<std::optional<Array>> parts;
  for (const Json& part : read_list(json)) {
    if (part.is_null())
      parts.emplace_back();
    else
      parts.emplace_back(in.array(part));
  }
  return parts;
}

Json write_gradients(const std::vector<Gradient>& gradients, PayloadWriter& out) {
  Json list = Json::array();
  for (const auto& [input, parts] : gradients) {
    Json json;
    json["input"] = input;
    json["parts"] = write_parts(parts, out);
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<Gradient> read_gradients(const Json& list, const PayloadReader& in) {
  std::vector<Gradient> gradients;
  for (const Json& json : read_list(list))
    gradients.push_back({read_text(field(json, "input")), read_parts(field(json, "parts"), in)});
  return gradients;
}

Json write_step_values(const std::vector<StepValue>& values, PayloadWriter& out) {
  Json list = Json::array();
  for (const auto& [step, by_rank, bound] : values) {
    Json json;
    json["step"] = step;
    json["by_rank"] = out.arrays(by_rank);
    json["bound"] = out.arrays(bound);
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<StepValue> read_step_values(const Json& list, const PayloadReader& in) {
  std::vector<StepValue> values;
  for (const Json& json : read_list(list))
    values.push_back({read_text(field(json, "step")), in.arrays(field(json, "by_rank")),
                      in.arrays(field(json, "bound"))});
  return values;
}

Json write_error(const RankError& error) {
  const auto& [kind, rank, step, message, in_backward] = error;
  Json json;
  json["kind"] = name_of(kind);
  json["rank"] = rank;
  json["step"] = step;
  json["message"] = message;
  if (in_backward) json["in_backward"] = true;
  return json;
}

// What a rank says is its word, and may be of any length.
std::string cut(const std::string& text) {
  constexpr std::size_t kLongest = 32 << 10;
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;  // no part of a character
  return text.substr(0, end) + "... (" + std::to_string(text.size() - end) + " bytes left out)";
}

RankError read_error(const Json& json) {
  RankError error;
  const std::string kind = read_text(field(json, "kind"));
  const std::optional<ErrorKind> known = error_kind_named(kind);
  if (!known) throw BadMessage("unknown kind of error \"" + cut(kind) + '"');
  error.kind = *known;
  error.rank = read_int(field(json, "rank"));
  error.step = read_text(field(json, "step"));
  error.message = cut(read_text(field(json, "message")));
  if (const Json* in_backward = optional_field(json, "in_backward"))
    error.in_backward = read_bool(*in_backward);
  return error;
}

Json write_all_strides(const std::vector<Strides>& by_rank) {
  Json list = Json::array();
  for (const Strides& strides : by_rank) list.push_back(strides);
  return list;
}

Strides read_strides(const Json& list) {
  Strides strides;
  for (const Json& n : read_list(list))
    strides.push_back(read_integer(n, 0, std::numeric_limits<std::int64_t>::max()));
  return strides;
}

std::vector<Strides> read_all_strides(const Json& list) {
  std::vector<Strides> by_rank;
  for (const Json& strides : read_list(list)) by_rank.push_back(read_strides(strides));
  return by_rank;
}

Json write_drive(const Drive& drive) {
  const auto& [cotangents, operand_strides, cotangent_strides] = drive;
  Json json;
  json["cotangents"] = cotangents;
  json["operand_strides"] = write_all_strides(operand_strides);
  json["cotangent_strides"] = write_all_strides(cotangent_strides);
  return json;
}

Drive read_drive(const Json& json) {
  return {read_text(field(json, "cotangents")), read_all_strides(field(json, "operand_strides")),
          read_all_strides(field(json, "cotangent_strides"))};
}

Json write_observed(const std::vector<ObservedCall>& calls, PayloadWriter& out) {
  Json list = Json::array();
  const auto part = [&](const std::optional<Array>& array) {
    return array ? out.array(*array) : Json();
  };
  for (const auto& [step, operand, operand_strides, cotangent, cotangent_strides, given,
                    cotangent_after] : calls) {
    Json json;
    json["step"] = step;
    json["operand"] = out.array(operand);
    json["operand_strides"] = operand_strides;
    json["cotangent"] = part(cotangent);
    json["cotangent_strides"] = cotangent_strides;
    json["given"] = part(given);
    if (cotangent_after) json["cotangent_after"] = part(cotangent_after);
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<ObservedCall> read_observed(const Json& list, const PayloadReader& in) {
  std::vector<ObservedCall> calls;
  const auto part = [&](const Json& json) {
    return json.is_null() ? std::nullopt : std::optional(in.array(json));
  };
  for (const Json& json : read_list(list)) {
    const Json* after = optional_field(json, "cotangent_after");
    calls.push_back({read_text(field(json, "step")), in.array(field(json, "operand")),
                     read_strides(field(json, "operand_strides")), part(field(json, "cotangent")),
                     read_strides(field(json, "cotangent_strides")), part(field(json, "given")),
                     after ? part(*after) : std::nullopt});
  }
  return calls;
}

Json write_request(const SimulateRequest& request, PayloadWriter& out) {
  const auto& [program, weights, run_weights, rules, leaves_by_rank, with_bounds, bounds_may_wait,
               with_cotangents, with_guards, on_gpu, with_differences, drive] = request;
  Json json;
  json["program"] = write_program(program, out);
  Json& weight_lists = json["weights"] = Json::array();
  for (const auto& w : weights) weight_lists.push_back(out.numbers(w));
  Json& run_lists = json["run_weights"] = Json::array();
  for (const auto& w : run_weights) run_lists.push_back(out.numbers(w));
  Json& rule_list = json["rules"] = Json::array();
  for (const auto& [step, rule] : rules) {
    Json choice;
    choice["step"] = step;
    choice["rule"] = rule;
    rule_list.push_back(std::move(choice));
  }
  json["leaves_by_rank"] = leaves_by_rank;
  json["with_bounds"] = with_bounds;
  json["bounds_may_wait"] = bounds_may_wait;
  json["with_cotangents"] = with_cotangents;
  json["with_guards"] = with_guards;
  if (on_gpu) json["on_gpu"] = true;
  json["with_differences"] = with_differences;
  if (drive) json["drive"] = write_drive(*drive);
  return json;
}

SimulateRequest read_simulate_request(const Json& json, const PayloadReader& in) {
  SimulateRequest request;
  request.program = read_program(field(json, "program"), in);
  for (const Json& w : read_list(field(json, "weights"))) request.weights.push_back(in.numbers(w));
  for (const Json& w : read_list(field(json, "run_weights")))
    request.run_weights.push_back(in.numbers(w));
  for (const Json& choice : read_list(field(json, "rules")))
    request.rules.push_back({read_text(field(choice, "step")), read_text(field(choice, "rule"))});
  request.leaves_by_rank = read_bool(field(json, "leaves_by_rank"));
  request.with_bounds = read_bool(field(json, "with_bounds"));
  request.bounds_may_wait = read_bool(field(json, "bounds_may_wait"));
  request.with_cotangents = read_bool(field(json, "with_cotangents"));
  request.with_guards = read_bool(field(json, "with_guards"));
  request.on_gpu = optional_field(json, "on_gpu") && read_bool(field(json, "on_gpu"));
  request.with_differences = read_bool(field(json, "with_differences"));
  if (const Json* drive = optional_field(json, "drive")) request.drive = read_drive(*drive);
  return request;
}

Json write_request(const RunRequest& request, PayloadWriter& out) {
  const auto& [program, subject, backend, weights, device, measured, observe, drive] = request;
  Json json;
  json["program"] = write_program(program, out);
  json["subject"] = subject;
  json["backend"] = backend;
  json["weights"] = out.numbers(weights);
  if (!device.empty()) json["device"] = device;
  for (const auto& row : measured) json["measured"].push_back(out.numbers(row));
  if (observe) json["observe"] = true;
  if (drive) json["drive"] = write_drive(*drive);
  return json;
}

RunRequest read_run_request(const Json& json, const PayloadReader& in) {
  RunRequest request{read_program(field(json, "program"), in), read_text(field(json, "subject")),
                     read_text(field(json, "backend")), in.numbers(field(json, "weights")),
                     optional_field(json, "device") ? read_text(field(json, "device")) : ""};
  if (const Json* measured = optional_field(json, "measured"))
    for (const Json& row : read_list(*measured)) request.measured.push_back(in.numbers(row));
  request.observe = optional_field(json, "observe") && read_bool(field(json, "observe"));
  if (const Json* drive = optional_field(json, "drive")) request.drive = read_drive(*drive);
  return request;
}

Json write_undecided(const std::vector<UndecidedElement>& elements) {
  Json list = Json::array();
  for (const auto& [input, part, element, why] : elements) {
    Json json;
    json["input"] = input;
    json["part"] = part;
    json["element"] = element;
    json["why"] = why;
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<UndecidedElement> read_undecided(const Json& list) {
  std::vector<UndecidedElement> elements;
  for (const Json& json : read_list(list))
    elements.push_back(
        {read_text(field(json, "input")), read_int(field(json, "part")),
         read_integer(field(json, "element"), 0, std::numeric_limits<std::int64_t>::max()),
         read_text(field(json, "why"))});
  return elements;
}

Json write_differences(const FiniteDifferences& differences) {
  Json json;
  json["agree"] = differences.answer == FiniteDifferences::Answer::kAgree;
  json["numeric"] = number(differences.numeric);
  json["derivative"] = number(differences.derivative);
  return json;
}

FiniteDifferences read_differences(const Json& json) {
  const bool agree = read_bool(field(json, "agree"));
  return {agree ? FiniteDifferences::Answer::kAgree : FiniteDifferences::Answer::kDisagree,
          read_number(field(json, "numeric")), read_number(field(json, "derivative"))};
}

Json write_result(const Simulation& simulation, PayloadWriter& out) {
  const auto& [invalid, losses, loss_bounds, steps, cotangents, gradients, bounds, exact,
               bound_notes, undecided, forward_only, reaches_no_collective, single_loss,
               single_loss_bound, single_gradients, single_bounds, file_truth, differences, held,
               cuts, undecided_elements] = simulation;
  Json json;
  if (invalid) {
    const auto& [pointer, message, caret] = *invalid;
    Json& refused = json["invalid"];
    refused["pointer"] = pointer;
    refused["message"] = message;
    refused["caret"] = caret;
  }
  json["losses"] = out.numbers(losses);
  json["loss_bounds"] = out.numbers(loss_bounds);
  json["steps"] = write_step_values(steps, out);
  json["cotangents"] = write_step_values(cotangents, out);
  Json& by_objective = json["gradients"] = Json::array();
  for (const auto& g : gradients) by_objective.push_back(write_gradients(g, out));
  json["bounds"] = write_gradients(bounds, out);
  json["exact"] = exact;
  json["bound_notes"] = write_texts(bound_notes);
  json["undecided"] = write_texts(undecided);
  json["forward_only"] = forward_only;
  if (reaches_no_collective) json["reaches_no_collective"] = true;
  if (single_loss) json["single_loss"] = number(*single_loss);
  json["single_loss_bound"] = number(single_loss_bound);
  json["single_gradients"] = write_gradients(single_gradients, out);
  json["single_bounds"] = write_gradients(single_bounds, out);
  json["file_truth"] = write_gradients(file_truth, out);
  if (differences.answer != FiniteDifferences::Answer::kNotAsked)
    json["differences"] = write_differences(differences);
  if (!held.empty()) json["held"] = write_gradients(held, out);
  if (!cuts.empty()) json["cuts"] = write_texts(cuts);
  if (!undecided_elements.empty()) json["undecided_elements"] = write_undecided(undecided_elements);
  return json;
}

Simulation read_simulation(const Json& json, const PayloadReader& in) {
  Simulation s;
  if (const Json* invalid = optional_field(json, "invalid"))
    s.invalid =
        InvalidProgram{read_text(field(*invalid, "pointer")), read_text(field(*invalid, "message")),
                       read_text(field(*invalid, "caret"))};
  s.losses = in.numbers(field(json, "losses"));
  s.loss_bounds = in.numbers(field(json, "loss_bounds"));
  s.steps = read_step_values(field(json, "steps"), in);
  s.cotangents = read_step_values(field(json, "cotangents"), in);
  for (const Json& g : read_list(field(json, "gradients")))
    s.gradients.push_back(read_gradients(g, in));
  s.bounds = read_gradients(field(json, "bounds"), in);
  s.exact = read_bool(field(json, "exact"));
  s.bound_notes = read_texts(field(json, "bound_notes"));
  s.undecided = read_texts(field(json, "undecided"));
  s.forward_only = read_text(field(json, "forward_only"));
  if (const Json* nowhere = optional_field(json, "reaches_no_collective"))
    s.reaches_no_collective = read_bool(*nowhere);
  if (const Json* loss = optional_field(json, "single_loss")) s.single_loss = read_number(*loss);
  s.single_loss_bound = read_number(field(json, "single_loss_bound"));
  s.single_gradients = read_gradients(field(json, "single_gradients"), in);
  s.single_bounds = read_gradients(field(json, "single_bounds"), in);
  s.file_truth = read_gradients(field(json, "file_truth"), in);
  if (const Json* differences = optional_field(json, "differences"))
    s.differences = read_differences(*differences);
  if (const Json* held = optional_field(json, "held")) s.held = read_gradients(*held, in);
  if (const Json* cuts = optional_field(json, "cuts")) s.cuts = read_texts(*cuts);
  if (const Json* elements = optional_field(json, "undecided_elements"))
    s.undecided_elements = read_undecided(*elements);
  return s;
}

Json write_result(const RankResult& result, PayloadWriter& out) {
  const auto& [loss, loss_shape, gradients, steps, warnings, composed, skipped, measured, observed,
               shares, error] = result;
  Json json;
  json["loss"] = number(loss);
  json["loss_shape"] = loss_shape;
  json["gradients"] = write_parts(gradients, out);
  json["steps"] = out.arrays(steps);
  json["warnings"] = write_texts(warnings);
  json["composed"] = write_texts(composed);
  json["skipped"] = skipped;
  if (measured) json["measured"] = write_result(*measured, out);
  if (!observed.empty()) json["observed"] = write_observed(observed, out);
  if (!shares.empty()) json["shares"] = write_parts(shares, out);
  if (error) json["error"] = write_error(*error);
  return json;
}

RankResult read_rank_result(const Json& json, const PayloadReader& in) {
  RankResult r;
  r.loss = read_number(field(json, "loss"));
  for (const Json& n : read_list(field(json, "loss_shape")))
    r.loss_shape.push_back(read_integer(n, 0, std::numeric_limits<std::int64_t>::max()));
  r.gradients = read_parts(field(json, "gradients"), in);
  r.steps = in.arrays(field(json, "steps"));
  r.warnings = read_texts(field(json, "warnings"));
  r.composed = read_texts(field(json, "composed"));
  r.skipped = read_text(field(json, "skipped"));
  if (const Json* measured = optional_field(json, "measured"))
    r.measured = read_simulation(*measured, in);
  if (const Json* observed = optional_field(json, "observed"))
    r.observed = read_observed(*observed, in);
  if (const Json* shares = optional_field(json, "shares")) r.shares = read_parts(*shares, in);
  if (const Json* error = optional_field(json, "error")) r.error = read_error(*error);
  return r;
}

// The expected values go as a descriptor of their own: they are where their message left them.
Json write_expected(const ExpectedValues& expected) {
  PayloadWriter out(&expected.payload);
  const auto lists = [&](const std::vector<ExpectedValues::ByRank>& values) {
    Json json = Json::array();
    for (const ExpectedValues::ByRank& by_rank : values) json.push_back(write_parts(by_rank, out));
    return json;
  };
  Json json;
  json["bytes"] = expected.payload.values.size_bytes();
  json["gradients"] = lists(expected.gradients);
  json["steps"] = lists(expected.steps);
  return json;
}

std::shared_ptr<const ExpectedValues> read_expected(const Json& json, const Frame& frame) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 48;
  const auto bytes =
      static_cast<std::size_t>(read_integer(field(json, "bytes"), sizeof(double), kMostBytes));
  if (frame.fds.size() != 1) throw BadMessage("expected values come with one descriptor");
  std::string error;
  const MappedMemory memory = map_sealed(frame.fds[0].get(), bytes, &error);
  if (!memory) throw BadMessage(error);
  auto expected = std::make_shared<ExpectedValues>();
  const auto* first = reinterpret_cast<const double*>(memory.get());
  expected->payload = {nullptr, {first, bytes / sizeof(double)}, memory};
  const PayloadReader in(frame, &expected->payload);
  const auto read_lists = [&](const char* name, std::vector<ExpectedValues::ByRank>& values) {
    for (const Json& by_rank : read_list(field(json, name)))
      values.push_back(read_parts(by_rank, in));
  };
  read_lists("gradients", expected->gradients);
  read_lists("steps", expected->steps);
  return expected;
}

template <class Request>
SharedFrame write_request_frame(const char* kind, std::uint64_t id, const Request& request,
                                const ExpectedValues* expected = nullptr) {
  PayloadWriter out;
  Json json = write_request(request, out);
  json["kind"] = kind;
  json["id"] = id;
  if (!expected) return out.finish(json);
  json["expected"] = write_expected(*expected);
  return out.finish(json, {expected->payload.fd});
}

const char* role_name(WorkerRole role) { return role == WorkerRole::kRank ? "rank" : "simulator"; }

WorkerRole read_role(const Json& json) {
  const std::string& name = read_text(json);
  if (name == "rank") return WorkerRole::kRank;
  if (name == "simulator") return WorkerRole::kSimulator;
  throw BadMessage("unknown role \"" + name + '"');
}

WorkerSeen read_seen(std::uint64_t worker, const Json& json) {
  WorkerSeen seen{
      worker, static_cast<char>(read_integer(field(json, "state"), 0, 127)),
      read_integer(field(json, "waited_ns"), 0, std::numeric_limits<std::int64_t>::max())};
  if (const Json* at = optional_field(json, "at")) seen.at = read_text(*at);
  return seen;
}

[[noreturn]] void unknown_kind(const std::string& kind) {
  throw BadMessage("unknown message \"" + kind + '"');
}

}  // namespace

SharedFrame encode(const ZygoteRequest& request, std::vector<std::shared_ptr<const UniqueFd>> fds) {
  Json json;
  if (const auto* fork = std::get_if<ForkWorker>(&request)) {
    const auto& [worker, role, rank, world_size, exec, place] = *fork;
    json["kind"] = "fork";
    json["worker"] = worker;
    json["role"] = role_name(role);
    json["rank"] = rank;
    json["world_size"] = world_size;
    if (!exec.empty()) json["exec"] = exec;
    if (place >= 0) json["place"] = place;
  } else if (const auto* kill = std::get_if<KillWorker>(&request)) {
    json["kind"] = "kill";
    json["worker"] = kill->worker;
  } else {
    json["kind"] = "look";
    json["worker"] = std::get<LookAtWorker>(request).worker;
  }
  return PayloadWriter().finish(json, std::move(fds));
}

SharedFrame encode(const ZygoteEvent& event) {
  Json json;
  if (const auto* ready = std::get_if<ZygoteReady>(&event)) {
    json["kind"] = "ready";
    json["protocol"] = ready->protocol;
    json["torch"] = ready->torch;
    if (ready->takes_expected) json["takes_expected"] = true;
  } else if (const auto* forked = std::get_if<WorkerForked>(&event)) {
    json["kind"] = "forked";
    json["worker"] = forked->worker;
    json["pid"] = forked->pid;
  } else if (const auto* exited = std::get_if<WorkerExited>(&event)) {
    json["kind"] = "exited";
    json["worker"] = exited->worker;
    json["wait_status"] = exited->wait_status;
  } else if (const auto* failed = std::get_if<ForkFailed>(&event)) {
    json["kind"] = "fork_failed";
    json["worker"] = failed->worker;
    json["message"] = failed->message;
  } else if (const auto* seen = std::get_if<WorkerSeen>(&event)) {
    json["kind"] = "seen";
    json["worker"] = seen->worker;
    json["state"] = static_cast<int>(seen->state);
    json["waited_ns"] = seen->waited_ns;
    if (seen->at) json["at"] = *seen->at;
  } else {
    const auto& lost = std::get<ZygoteLost>(event);
    json["kind"] = "lost";
    json["message"] = lost.message;
    json["is_final"] = lost.is_final;
  }
  return PayloadWriter().finish(json);
}

SharedFrame encode_request(std::uint64_t id, const SimulateRequest& request) {
  return write_request_frame("simulate", id, request);
}

SharedFrame encode_request(std::uint64_t id, const RunRequest& request,
                           const ExpectedValues* expected) {
  return write_request_frame("run", id, request, expected);
}

SharedFrame encode(const WorkReply& reply, const SharedPayload* expected) {
  const auto& [id, what, error, output, elapsed_ns, entered, payload] = reply;
  PayloadWriter out(expected);
  Json json = std::visit([&](const auto& result) { return write_result(result, out); }, what);
  json["kind"] = std::holds_alternative<Simulation>(what) ? "simulation" : "result";
  json["id"] = id;
  if (error) json["error"] = write_error(*error);
  if (!output.empty()) json["output"] = output;
  json["elapsed_ns"] = elapsed_ns;
  if (!entered.empty()) {
    Json calls = Json::array();
    for (const NotedCall& call : entered) calls.push_back(write_noted_call(call));
    json["entered"] = std::move(calls);
  }
  return out.finish(json);
}

Decoded<ZygoteRequest> decode_zygote_request(const Frame& frame) {
  return decoded<ZygoteRequest>(frame, [](const Json& json) -> ZygoteRequest {
    const std::string& kind = read_text(field(json, "kind"));
    const std::uint64_t worker = read_id(field(json, "worker"));
    if (kind == "kill") return KillWorker{worker};
    if (kind == "look") return LookAtWorker{worker};
    if (kind != "fork") unknown_kind(kind);
    const int world_size = static_cast<int>(read_integer(field(json, "world_size"), 1, kMaxRanks));
    return ForkWorker{worker,
                      read_role(field(json, "role")),
                      static_cast<int>(read_integer(field(json, "rank"), 0, world_size - 1)),
                      world_size,
                      optional_field(json, "exec") ? read_text(field(json, "exec")) : "",
                      optional_field(json, "place")
                          ? static_cast<int>(read_integer(field(json, "place"), 0, world_size - 1))
                          : -1};
  });
}

Decoded<ZygoteEvent> decode_zygote_event(const Frame& frame) {
  return decoded<ZygoteEvent>(frame, [](const Json& json) -> ZygoteEvent {
    const std::string& kind = read_text(field(json, "kind"));
    if (kind == "ready") {
      const Json* takes_expected = optional_field(json, "takes_expected");
      return ZygoteReady{read_int(field(json, "protocol")), read_text(field(json, "torch")),
                         takes_expected && read_bool(*takes_expected)};
    }
    if (kind == "lost")
      return ZygoteLost{read_text(field(json, "message")), read_bool(field(json, "is_final"))};
    const std::uint64_t worker = read_id(field(json, "worker"));
    if (kind == "seen") return read_seen(worker, json);
    if (kind == "forked") return WorkerForked{worker, read_int(field(json, "pid"), 1)};
    if (kind == "exited") return WorkerExited{worker, read_int(field(json, "wait_status"))};
    if (kind == "fork_failed") return ForkFailed{worker, read_text(field(json, "message"))};
    unknown_kind(kind);
  });
}

Decoded<WorkRequest> decode_request(const Frame& frame) {
  return decoded<WorkRequest>(frame, [&](const Json& json) -> WorkRequest {
    const PayloadReader in(frame);
    const std::string& kind = read_text(field(json, "kind"));
    const std::uint64_t id = read_id(field(json, "id"));
    if (kind == "simulate") return {id, read_simulate_request(json, in)};
    if (kind != "run") unknown_kind(kind);
    WorkRequest request{id, read_run_request(json, in)};
    if (const Json* expected = optional_field(json, "expected"))
      request.expected = read_expected(*expected, frame);
    return request;
  });
}

Decoded<WorkReply> decode_reply(const Frame& frame, const SharedPayload* expected) {
  return decoded<WorkReply>(frame, [&](const Json& json) {
    const PayloadReader in(frame, expected);
    WorkReply reply;
    if (frame.payload_fd) reply.payload = {frame.payload_fd, frame.payload, frame.keeper};
    const std::string& kind = read_text(field(json, "kind"));
    reply.id = read_id(field(json, "id"));
    reply.elapsed_ns =
        read_integer(field(json, "elapsed_ns"), 0, std::numeric_limits<std::int64_t>::max());
    if (const Json* output = optional_field(json, "output")) reply.output = read_text(*output);
    if (const Json* entered = optional_field(json, "entered"))
      for (const Json& call : read_list(*entered)) reply.entered.push_back(read_noted_call(call));
    if (kind == "result") {
      reply.what = read_rank_result(json, in);
    } else if (kind == "simulation") {
      reply.what = read_simulation(json, in);
      if (const Json* error = optional_field(json, "error")) reply.error = read_error(*error);
    } else {
      unknown_kind(kind);
    }
    return reply;
  });
}

}  // namespace distgrad
