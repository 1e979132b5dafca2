// Lists what messages hold of requests and of results. Included by the codecs only.
#pragma once

#include "model/run_result.h"
#include "protocol/program_fields.h"

namespace distgrad {

inline std::string_view message_name(ErrorKind kind) { return name_of(kind); }
inline auto message_named(std::string_view name, ErrorKind) { return error_kind_named(name); }

void fields(auto& a, Like<InvalidProgram> auto& invalid) {
  auto& [pointer, message, caret] = invalid;
  a("pointer", pointer);
  a("message", message);
  a("caret", caret);
}

void fields(auto& a, Like<Gradient> auto& gradient) {
  auto& [input, parts] = gradient;
  a("input", input);
  a("parts", parts);
}

void fields(auto& a, Like<StepValue> auto& value) {
  auto& [step, by_rank, bound] = value;
  a("step", step);
  a("by_rank", by_rank);
  a("bound", bound);
}

void fields(auto& a, Like<RuleChoice> auto& choice) {
  auto& [step, rule] = choice;
  a("step", step);
  a("rule", rule);
}

// Lists the fields of differences, which are present only if they were asked for.
template <class Archive>
void fields(Archive& a, Like<FiniteDifferences> auto& differences) {
  using Answer = FiniteDifferences::Answer;
  auto& [answer, numeric, derivative] = differences;
  bool agree = answer == Answer::kAgree;
  a("agree", agree);
  if constexpr (Archive::kReads) answer = agree ? Answer::kAgree : Answer::kDisagree;
  a("numeric", numeric);
  a("derivative", derivative);
}

inline bool is_left_out(const FiniteDifferences& differences) {
  return differences.answer == FiniteDifferences::Answer::kNotAsked;
}

void fields(auto& a, Like<Drive> auto& drive) {
  auto& [cotangents, operand_strides, cotangent_strides] = drive;
  a("cotangents", cotangents);
  a("operand_strides", operand_strides);
  a("cotangent_strides", cotangent_strides);
}

void fields(auto& a, Like<SimulateRequest> auto& request) {
  auto& [program, weights, run_weights, rules, leaves_by_rank, with_bounds, bounds_may_wait,
         with_cotangents, with_guards, on_gpu, with_differences, drive] = request;
  a("program", program);
  a("weights", weights);
  a("run_weights", run_weights);
  a("rules", rules);
  a("leaves_by_rank", leaves_by_rank);
  a("with_bounds", with_bounds);
  a("bounds_may_wait", bounds_may_wait);
  a("with_cotangents", with_cotangents);
  a("with_guards", with_guards);
  a.optional("on_gpu", on_gpu);
  a("with_differences", with_differences);
  a.optional("drive", drive);
}

void fields(auto& a, Like<RunRequest> auto& request) {
  auto& [program, subject, backend, weights, device, measured, observe, drive] = request;
  a("program", program);
  a("subject", subject);
  a("backend", backend);
  a("weights", weights);
  a.optional("device", device);
  a.optional("measured", measured);
  a.optional("observe", observe);
  a.optional("drive", drive);
}

void fields(auto& a, Like<UndecidedElement> auto& undecided) {
  auto& [input, part, element, why] = undecided;
  a("input", input);
  a("part", part);
  a("element", element);
  a("why", why);
}

void fields(auto& a, Like<Simulation> auto& simulation) {
  auto& [invalid, losses, loss_bounds, steps, cotangents, gradients, bounds, exact, bound_notes,
         undecided, forward_only, reaches_no_collective, single_loss, single_loss_bound,
         single_gradients, single_bounds, file_truth, differences, held, cuts, undecided_elements,
         casts, is_right_in_float64] = simulation;
  a.optional("invalid", invalid);
  a.optional("losses", losses);
  a.optional("loss_bounds", loss_bounds);
  a.optional("steps", steps);
  a.optional("cotangents", cotangents);
  a.optional("gradients", gradients);
  a.optional("bounds", bounds);
  a.optional("exact", exact, false);
  a.optional("bound_notes", bound_notes);
  a.optional("undecided", undecided);
  a.optional("forward_only", forward_only);
  a.optional("reaches_no_collective", reaches_no_collective);
  a.optional("single_loss", single_loss);
  a.optional("single_loss_bound", single_loss_bound, 0.0);
  a.optional("single_gradients", single_gradients);
  a.optional("single_bounds", single_bounds);
  a.optional("file_truth", file_truth);
  a.optional("differences", differences);
  a.optional("held", held);
  a.optional("cuts", cuts);
  a.optional("undecided_elements", undecided_elements);
  a.optional("casts", casts);
  a.optional("is_right_in_float64", is_right_in_float64, false);
}

// Cuts a rank's text, which may be of any length.
inline std::string cut(const std::string& text) {
  constexpr std::size_t kLongest = 32 << 10;
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  // No part of a character may be left.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "... (" + std::to_string(text.size() - end) + " bytes left out)";
}

template <class Archive>
void fields(Archive& a, Like<RankError> auto& error) {
  auto& [kind, rank, step, message, in_backward] = error;
  a("kind", kind);
  a("rank", rank);
  a("step", step);
  a("message", message);
  if constexpr (Archive::kReads) message = cut(message);
  a.optional("in_backward", in_backward);
}

void fields(auto& a, Like<ObservedCall> auto& call) {
  auto& [step, operand, operand_strides, cotangent, cotangent_strides, given, cotangent_after] =
      call;
  a("step", step);
  a("operand", operand);
  a("operand_strides", operand_strides);
  a("cotangent", cotangent);
  a("cotangent_strides", cotangent_strides);
  a("given", given);
  a.optional("cotangent_after", cotangent_after);
}

void fields(auto& a, Like<RankResult> auto& result) {
  auto& [loss, loss_shape, gradients, steps, warnings, composed, skipped, measured, observed,
         shares, error] = result;
  a("loss", loss);
  a("loss_shape", loss_shape);
  a("gradients", gradients);
  a("steps", steps);
  a("warnings", warnings);
  a("composed", composed);
  a("skipped", skipped);
  a.optional("measured", measured);
  a.optional("observed", observed);
  a.optional("shares", shares);
  a.optional("error", error);
}

}  // namespace distgrad
