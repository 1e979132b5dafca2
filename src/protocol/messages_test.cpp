#include "protocol/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "base/memory_file.h"
#include "protocol/payload.h"

namespace distgrad {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

Frame received(const OutgoingFrame& sent) {
  FrameParser parser;
  std::memcpy(parser.room(sent.bytes.size()).data(), sent.bytes.data(), sent.bytes.size());
  parser.commit(sent.bytes.size());
  for (const auto& fd : sent.fds) parser.add_fd(UniqueFd(dup(fd->get())));
  NextFrame next = parser.next();
  return std::move(std::get<Frame>(next));
}

// Bit for bit, so that NaN equals itself and -0 differs from 0.
bool same(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

MATCHER_P(IsArray, expected, "") {
  if (arg.shape() != expected.shape()) return false;
  for (std::int64_t i = 0; i < expected.size(); ++i)
    if (!same(arg[i], expected[i])) return false;
  return true;
}

Array numbers(Shape shape, std::vector<double> values) {
  return Array(std::move(shape), std::move(values));
}
const Array kOdd = numbers({2, 3}, {1, -0.0, kNan, kInf, -kInf, 5e-324});
const Array kEmpty = numbers({0, 3}, {});

// Every member different from its default, so that a member that is dropped shows.
Program full_program() {
  Program p;
  p.world_size = 4;
  p.dtype = DType::kBFloat16;
  p.groups = {{"dp", {{0, 2}, {1, 3}}, true}, {"odd", {{3, 0, 1}, {2}}, false}};
  Input value;
  value.name = "a";
  value.pointer = "/inputs/a";
  value.value = kOdd;
  value.requires_grad = false;
  value.layout = {{"dp", {Layout::Kind::kShard, -2}}, {"tp", {Layout::Kind::kReplicate, 0}}};
  value.sync = {{"dp", Input::Sync::kMean}, {"", Input::Sync::kSum}};
  Input by_rank;
  by_rank.name = "b";
  by_rank.value = std::vector<Array>{kOdd, kEmpty, Array::scalar(1)};
  by_rank.layout = {{"", {Layout::Kind::kLocal, 0}}};
  Input expression;
  expression.name = "c";
  expression.value = Expression{"rank \"quoted\" \n \xc3\xa9", "/inputs/c/expr"};
  expression.layout = {{"", {Layout::Kind::kInvariant, 0}}};
  Input random;
  random.name = "d";
  random.value = RandomSpec{{std::int64_t{3}, Expression{"rank + 1", "/s"}},
                            RandomSpec::Kind::kUniform,
                            -kInf,
                            0.1,
                            ~std::uint64_t{0}};
  p.inputs = {value, by_rank, expression, random};
  CollectiveCall call;
  call.kind = CollectiveKind::kAllToAll;
  call.operand = {"x[0]", "/steps/1/y/all_to_all"};
  call.group = "odd";
  call.op = ReduceOp::kPremulSum;
  call.factor = kNan;
  call.root = 3;
  call.dim = -1;
  call.splits = {{1, 2}, {}, {std::int64_t{1} << 40}};
  call.pairs = {{0, 1}, {3, 3}};
  p.steps = {
      {"x", "/steps/0", Expression{"a + 1", "/steps/0/x"}},
      {"y", "/steps/1", call},
      {"z", "/steps/2",
       CodeCall{
           "python:f.py:g", {{"x", "/steps/2/z/args/0"}, {"2 * x", "/a/1"}}, "python:f.py:h"}}};
  p.loss = {"y.sum()", "/loss"};
  p.single_device =
      SingleDevice{{{"s", "/single_device/steps/0", Expression{"a", "/e"}}}, {"s", "/l"}};
  p.truth = {{"a", "/truth/a", kOdd},
             {"b", "/truth/b", std::vector<Array>{kOdd}},
             {"c", "/t", Expression{"1", "/t/c"}}};
  p.is_widened = true;
  return p;
}

void expect_same(const Expression& a, const Expression& b) {
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.pointer, b.pointer);
}

template <class Variant>
void expect_same_value(const Variant& a, const Variant& b) {
  ASSERT_EQ(a.index(), b.index());
  if (const auto* array = std::get_if<Array>(&a)) {
    EXPECT_THAT(*array, IsArray(std::get<Array>(b)));
  }
  if (const auto* e = std::get_if<Expression>(&a)) expect_same(*e, std::get<Expression>(b));
  if (const auto* by_rank = std::get_if<std::vector<Array>>(&a)) {
    const auto& other = std::get<std::vector<Array>>(b);
    ASSERT_EQ(by_rank->size(), other.size());
    for (std::size_t i = 0; i < other.size(); ++i) EXPECT_THAT((*by_rank)[i], IsArray(other[i]));
  }
  if constexpr (std::variant_size_v < Variant >> 3) {
    if (const auto* random = std::get_if<RandomSpec>(&a)) {
      const auto& other = std::get<RandomSpec>(b);
      ASSERT_EQ(random->shape.size(), other.shape.size());
      EXPECT_EQ(std::get<std::int64_t>(random->shape[0]), std::get<std::int64_t>(other.shape[0]));
      expect_same(std::get<Expression>(random->shape[1]), std::get<Expression>(other.shape[1]));
      EXPECT_EQ(random->kind, other.kind);
      EXPECT_TRUE(same(random->low, other.low) && same(random->high, other.high));
      EXPECT_EQ(random->seed, other.seed);
    }
  }
}

void expect_same_steps(const std::vector<Step>& a, const std::vector<Step>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].pointer, b[i].pointer);
    ASSERT_EQ(a[i].what.index(), b[i].what.index());
    if (const CodeCall* code = a[i].code()) {
      EXPECT_EQ(code->code, b[i].code()->code);
      EXPECT_EQ(code->simulate, b[i].code()->simulate);
      ASSERT_EQ(code->arguments.size(), b[i].code()->arguments.size());
      for (std::size_t k = 0; k < code->arguments.size(); ++k)
        expect_same(code->arguments[k], b[i].code()->arguments[k]);
      continue;
    }
    const CollectiveCall* call = a[i].collective();
    if (!call) {
      expect_same(std::get<Expression>(a[i].what), std::get<Expression>(b[i].what));
      continue;
    }
    const CollectiveCall& other = *b[i].collective();
    EXPECT_EQ(call->kind, other.kind);
    expect_same(call->operand, other.operand);
    EXPECT_EQ(call->group, other.group);
    EXPECT_EQ(call->op, other.op);
    EXPECT_TRUE(same(call->factor, other.factor));
    EXPECT_EQ(call->root, other.root);
    EXPECT_EQ(call->dim, other.dim);
    EXPECT_EQ(call->splits, other.splits);
    EXPECT_EQ(call->pairs, other.pairs);
  }
}

void expect_same(const Program& a, const Program& b) {
  EXPECT_EQ(a.world_size, b.world_size);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.is_widened, b.is_widened);
  ASSERT_EQ(a.groups.size(), b.groups.size());
  for (std::size_t i = 0; i < a.groups.size(); ++i) {
    EXPECT_EQ(a.groups[i].name, b.groups[i].name);
    EXPECT_EQ(a.groups[i].partition, b.groups[i].partition);
    EXPECT_EQ(a.groups[i].is_mesh_axis, b.groups[i].is_mesh_axis);
  }
  ASSERT_EQ(a.inputs.size(), b.inputs.size());
  for (std::size_t i = 0; i < a.inputs.size(); ++i) {
    const Input &x = a.inputs[i], &y = b.inputs[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.pointer, y.pointer);
    expect_same_value(x.value, y.value);
    EXPECT_EQ(x.requires_grad, y.requires_grad);
    EXPECT_EQ(x.sync, y.sync);
    ASSERT_EQ(x.layout.size(), y.layout.size());
    for (std::size_t k = 0; k < x.layout.size(); ++k) {
      EXPECT_EQ(x.layout[k].axis, y.layout[k].axis);
      EXPECT_EQ(x.layout[k].layout.kind, y.layout[k].layout.kind);
      EXPECT_EQ(x.layout[k].layout.dim, y.layout[k].layout.dim);
    }
  }
  expect_same_steps(a.steps, b.steps);
  expect_same(a.loss, b.loss);
  ASSERT_EQ(a.single_device.has_value(), b.single_device.has_value());
  if (a.single_device) {
    expect_same_steps(a.single_device->steps, b.single_device->steps);
    expect_same(a.single_device->loss, b.single_device->loss);
  }
  ASSERT_EQ(a.truth.size(), b.truth.size());
  for (std::size_t i = 0; i < a.truth.size(); ++i) {
    EXPECT_EQ(a.truth[i].input, b.truth[i].input);
    EXPECT_EQ(a.truth[i].pointer, b.truth[i].pointer);
    expect_same_value(a.truth[i].value, b.truth[i].value);
  }
}

void expect_same(const std::vector<std::optional<Array>>& a,
                 const std::vector<std::optional<Array>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].has_value(), b[i].has_value());
    if (a[i]) {
      EXPECT_THAT(*a[i], IsArray(*b[i]));
    }
  }
}

void expect_same(const std::vector<Gradient>& a, const std::vector<Gradient>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].input, b[i].input);
    expect_same(a[i].parts, b[i].parts);
  }
}

void expect_same(const std::vector<StepValue>& a, const std::vector<StepValue>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].step, b[i].step);
    ASSERT_EQ(a[i].by_rank.size(), b[i].by_rank.size());
    for (std::size_t k = 0; k < a[i].by_rank.size(); ++k)
      EXPECT_THAT(a[i].by_rank[k], IsArray(b[i].by_rank[k]));
    ASSERT_EQ(a[i].bound.size(), b[i].bound.size());
    for (std::size_t k = 0; k < a[i].bound.size(); ++k)
      EXPECT_THAT(a[i].bound[k], IsArray(b[i].bound[k]));
  }
}

void expect_same(const Drive& a, const Drive& b) {
  EXPECT_EQ(a.cotangents, b.cotangents);
  EXPECT_EQ(a.operand_strides, b.operand_strides);
  EXPECT_EQ(a.cotangent_strides, b.cotangent_strides);
}

void expect_same(const std::vector<ObservedCall>& a, const std::vector<ObservedCall>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].step, b[i].step);
    EXPECT_THAT(a[i].operand, IsArray(b[i].operand));
    EXPECT_EQ(a[i].operand_strides, b[i].operand_strides);
    EXPECT_EQ(a[i].cotangent_strides, b[i].cotangent_strides);
    expect_same({a[i].cotangent, a[i].given, a[i].cotangent_after},
                {b[i].cotangent, b[i].given, b[i].cotangent_after});
  }
}

// One of no rank, one of strides as torch has them: transposed, expanded, large.
Drive full_drive() { return {"c", {{}, {1, 3}, {0, std::int64_t{1} << 40}}, {{2, 1}, {}}}; }

template <class T, class Decode>
T round_trip(const SharedFrame& frame, Decode decode) {
  auto result = decode(received(*frame));
  EXPECT_TRUE(result.value) << result.error;
  return std::move(*result.value);
}

Decoded<WorkReply> decode_any_reply(const Frame& frame) { return decode_reply(frame); }

TEST(Messages, SimulateRequest) {
  SimulateRequest sent;
  sent.program = full_program();
  sent.weights = {{1, 0, kNan, -0.0}, {}, {0.1}};
  sent.run_weights = {{0.5, 0.25}};
  sent.rules = {{"y", "identity"}, {"z", "none"}};
  sent.leaves_by_rank = true;
  sent.with_bounds = false;
  sent.bounds_may_wait = true;
  sent.with_cotangents = true;
  sent.with_guards = false;
  sent.on_gpu = true;
  sent.with_differences = true;
  sent.drive = full_drive();
  const auto got = round_trip<WorkRequest>(encode_request(7, sent), decode_request);
  EXPECT_EQ(got.id, 7U);
  const auto& request = std::get<SimulateRequest>(got.what);
  expect_same(sent.program, request.program);
  ASSERT_EQ(request.weights.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(request.weights[i].size(), sent.weights[i].size());
    for (std::size_t k = 0; k < sent.weights[i].size(); ++k)
      EXPECT_TRUE(same(request.weights[i][k], sent.weights[i][k]));
  }
  EXPECT_EQ(request.run_weights, sent.run_weights);
  ASSERT_EQ(request.rules.size(), 2U);
  EXPECT_EQ(request.rules[1].step, "z");
  EXPECT_EQ(request.rules[1].rule, "none");
  EXPECT_TRUE(request.leaves_by_rank);
  EXPECT_FALSE(request.with_bounds);
  EXPECT_TRUE(request.bounds_may_wait);
  EXPECT_TRUE(request.with_cotangents);
  EXPECT_FALSE(request.with_guards);
  EXPECT_TRUE(request.on_gpu);
  EXPECT_TRUE(request.with_differences);
  expect_same(*sent.drive, request.drive.value());
  sent.drive.reset();
  EXPECT_FALSE(std::get<SimulateRequest>(
                   round_trip<WorkRequest>(encode_request(8, sent), decode_request).what)
                   .drive);
}

TEST(Messages, RunRequest) {
  const RunRequest sent{full_program(), "torch_nn",
                        "nccl",         {0.25, 0.5, 1, 2},
                        "cuda",         {{1, 0, 0, 0}, {0.5, 0.5, 0, 0}},
                        true,           full_drive()};
  const auto got = round_trip<WorkRequest>(encode_request(~std::uint64_t{0}, sent), decode_request);
  EXPECT_EQ(got.id, ~std::uint64_t{0});
  const auto& request = std::get<RunRequest>(got.what);
  expect_same(sent.program, request.program);
  EXPECT_EQ(request.subject, "torch_nn");
  EXPECT_EQ(request.backend, "nccl");
  EXPECT_EQ(request.device, "cuda");
  EXPECT_EQ(request.weights, sent.weights);
  EXPECT_EQ(request.measured, sent.measured);
  EXPECT_TRUE(request.observe);
  expect_same(*sent.drive, request.drive.value());
}

TEST(Messages, SmallestProgram) {
  Program program;
  program.loss.text = "x";
  const auto got = round_trip<WorkRequest>(
      encode_request(1, RunRequest{program, "", "", {}, "", {}}), decode_request);
  const auto& request = std::get<RunRequest>(got.what);
  expect_same(program, request.program);
  EXPECT_FALSE(request.observe);
  EXPECT_FALSE(request.drive);
}

TEST(Messages, Simulation) {
  Simulation s;
  s.invalid = InvalidProgram{"/loss", "what", "x\n^"};
  s.losses = {kNan, 2};
  s.loss_bounds = {0, 1e-300};
  s.steps = {{"y", {kOdd, kEmpty}, {kOdd}}, {"z", {}, {}}};
  s.cotangents = {{"c", {Array::scalar(3)}, {}}};
  s.gradients = {{{"a", {kOdd, std::nullopt}}}, {}};
  s.bounds = {{"b", {kEmpty}}};
  s.exact = true;
  s.bound_notes = {"note"};
  s.undecided = {"one", "two"};
  s.forward_only = "NaN";
  s.single_loss = kInf;
  s.single_loss_bound = 0.1;
  s.differences = {FiniteDifferences::Answer::kDisagree, 0.25, kInf};
  s.single_gradients = {{"g", {kOdd}}};
  s.single_bounds = {{"h", {kOdd}}};
  s.file_truth = {{"t", {std::nullopt}}};
  s.held = {{"a", {kOdd}}};
  s.cuts = {"detach() in layer.py:12"};
  s.casts = {"bfloat16 in layer.py:13"};
  s.is_right_in_float64 = true;
  s.undecided_elements = {{"a", 2, 5, "a kink"}};
  const WorkReply reply{3, s, RankError{ErrorKind::kCrash, -1, "y", "m"}, "printed \xff", 1234};
  const auto got = round_trip<WorkReply>(encode(reply), decode_any_reply);
  EXPECT_EQ(got.id, 3U);
  EXPECT_EQ(got.elapsed_ns, 1234);
  EXPECT_EQ(got.output, "printed \xef\xbf\xbd");  // made UTF-8
  EXPECT_EQ(got.error.value().kind, ErrorKind::kCrash);
  EXPECT_EQ(got.error->rank, -1);
  EXPECT_EQ(got.error->step, "y");
  EXPECT_EQ(got.error->message, "m");
  const auto& t = std::get<Simulation>(got.what);
  EXPECT_EQ(t.invalid.value().pointer, "/loss");
  EXPECT_EQ(t.invalid->message, "what");
  EXPECT_EQ(t.invalid->caret, "x\n^");
  ASSERT_EQ(t.losses.size(), 2U);
  EXPECT_TRUE(std::isnan(t.losses[0]) && t.losses[1] == 2);
  EXPECT_EQ(t.loss_bounds, s.loss_bounds);
  expect_same(s.steps, t.steps);
  expect_same(s.cotangents, t.cotangents);
  ASSERT_EQ(t.gradients.size(), 2U);
  expect_same(s.gradients[0], t.gradients[0]);
  expect_same(s.gradients[1], t.gradients[1]);
  expect_same(s.bounds, t.bounds);
  EXPECT_TRUE(t.exact);
  EXPECT_EQ(t.bound_notes, s.bound_notes);
  EXPECT_EQ(t.undecided, s.undecided);
  EXPECT_EQ(t.forward_only, "NaN");
  EXPECT_EQ(t.single_loss, kInf);
  EXPECT_EQ(t.single_loss_bound, 0.1);
  EXPECT_EQ(t.differences.answer, FiniteDifferences::Answer::kDisagree);
  EXPECT_EQ(t.differences.numeric, 0.25);
  EXPECT_EQ(t.differences.derivative, kInf);
  expect_same(s.single_gradients, t.single_gradients);
  expect_same(s.single_bounds, t.single_bounds);
  expect_same(s.file_truth, t.file_truth);
  expect_same(s.held, t.held);
  EXPECT_EQ(t.cuts, s.cuts);
  EXPECT_EQ(t.casts, s.casts);
  EXPECT_EQ(t.is_right_in_float64, s.is_right_in_float64);
  ASSERT_EQ(t.undecided_elements.size(), 1U);
  EXPECT_EQ(t.undecided_elements[0].input, "a");
  EXPECT_EQ(t.undecided_elements[0].part, 2);
  EXPECT_EQ(t.undecided_elements[0].element, 5);
  EXPECT_EQ(t.undecided_elements[0].why, "a kink");
}

TEST(Messages, RankResult) {
  RankResult r;
  r.loss = -0.0;
  r.loss_shape = {1, 1};
  r.gradients = {kOdd, std::nullopt, kEmpty};
  r.steps = {kOdd};
  r.warnings = {"w"};
  r.composed = {"c"};
  r.skipped = "why";
  r.measured.emplace().losses = {3, 4};
  r.observed = {{"y", kOdd, {1, 2}, kOdd, {0, 1}, kEmpty, numbers({2}, {1, -0.0})},
                {"z", kEmpty, {3, 1}, std::nullopt, {}, std::nullopt, std::nullopt}};
  r.shares = {std::nullopt, kEmpty, kOdd};
  r.error = RankError{ErrorKind::kException, 2, "y", "tab\t"};
  const auto got = round_trip<WorkReply>(encode(WorkReply{1, r, {}, "", 0}), decode_any_reply);
  const auto& s = std::get<RankResult>(got.what);
  EXPECT_TRUE(same(s.loss, -0.0));
  EXPECT_EQ(s.measured.value().losses, r.measured->losses);
  EXPECT_EQ(s.loss_shape, r.loss_shape);
  expect_same(r.gradients, s.gradients);
  ASSERT_EQ(s.steps.size(), 1U);
  EXPECT_THAT(s.steps[0], IsArray(kOdd));
  EXPECT_EQ(s.warnings, r.warnings);
  EXPECT_EQ(s.composed, r.composed);
  EXPECT_EQ(s.skipped, "why");
  expect_same(r.observed, s.observed);
  expect_same(r.shares, s.shares);
  EXPECT_EQ(s.error.value().kind, ErrorKind::kException);
  EXPECT_EQ(s.error->rank, 2);
  EXPECT_EQ(s.error->step, "y");
  EXPECT_EQ(s.error->message, "tab\t");
  EXPECT_FALSE(got.error) << "a rank's error is in its result";
}

TEST(Messages, LargeTensorsOutliveTheFrame) {
  RankResult r;
  r.gradients = {Array({1 << 18}, std::vector<double>(1 << 18, 4.5))};
  const auto got = round_trip<WorkReply>(encode(WorkReply{1, r, {}, "", 0}), decode_any_reply);
  EXPECT_EQ((*std::get<RankResult>(got.what).gradients[0])[(1 << 18) - 1], 4.5);
}

TEST(Messages, WhatSeveralTensorsShareIsSentOnce) {
  const Array shared({2, 1000}, std::vector<double>(2000, 4.5)),
      row({1000}, shared.values().data(), std::make_shared<Array>(shared)),
      other({2000}, std::vector<double>(2000, 7));
  RankResult r;
  r.gradients = {shared, row, shared, other};
  const Frame frame = received(*encode(WorkReply{1, r, {}, "", 0}));
  EXPECT_EQ(frame.payload.size(), 5000U) << "a part of it is another piece";
  const auto got = decode_reply(frame);
  const auto& gradients = std::get<RankResult>(got.value.value().what).gradients;
  for (std::size_t i = 0; i < r.gradients.size(); ++i) {
    EXPECT_EQ(gradients[i]->shape(), r.gradients[i]->shape());
    EXPECT_TRUE(std::ranges::equal(gradients[i]->values(), r.gradients[i]->values()));
  }
}

// As a simulation that came in shared memory.
SharedPayload shared_payload(const std::vector<double>& values) {
  auto fd = std::make_shared<UniqueFd>(create_memory_file("expected"));
  const std::size_t bytes = values.size() * sizeof(double);
  EXPECT_EQ(write(fd->get(), values.data(), bytes), static_cast<ssize_t>(bytes));
  seal(fd->get());
  std::string error;
  const MappedMemory memory = map_sealed(fd->get(), bytes, &error);
  return {fd, {reinterpret_cast<const double*>(memory.get()), values.size()}, memory};
}

ExpectedValues expected_values() {
  ExpectedValues expected;
  expected.payload = shared_payload({1, -0.0, kNan, kInf, 5, 6});
  const auto array = [&](Shape shape, std::size_t at) {
    return Array(std::move(shape), expected.payload.values.data() + at, expected.payload.keeper);
  };
  expected.gradients = {{array({2, 2}, 0), std::nullopt}, {}};
  expected.steps = {{array({2}, 4), array({2}, 4)}};
  return expected;
}

TEST(Messages, WhatIsExpectedOfARun) {
  const ExpectedValues sent = expected_values();
  const auto got = round_trip<WorkRequest>(encode_request(1, RunRequest{}, &sent), decode_request);
  ASSERT_TRUE(got.expected);
  ASSERT_EQ(got.expected->gradients.size(), 2U);
  ASSERT_EQ(got.expected->gradients[0].size(), 2U);
  EXPECT_THAT(*got.expected->gradients[0][0], IsArray(*sent.gradients[0][0]));
  EXPECT_FALSE(got.expected->gradients[0][1]);
  EXPECT_TRUE(got.expected->gradients[1].empty());
  EXPECT_THAT(*got.expected->steps.at(0).at(1), IsArray(*sent.steps[0][1]));
  EXPECT_FALSE(round_trip<WorkRequest>(encode_request(1, RunRequest{}), decode_request).expected);
}

TEST(Messages, ExpectedValuesThatCannotBeReadAreRefused) {
  const ExpectedValues sent = expected_values();
  const Frame good = received(*encode_request(1, RunRequest{}, &sent));
  ASSERT_TRUE(decode_request(good).value);
  const auto refused = [&](const char* from, const char* to, bool with_file = true) {
    Frame bad;
    bad.header = good.header;
    bad.payload = good.payload;
    bad.header.replace(bad.header.find(from), std::strlen(from), to);
    if (with_file) bad.fds.emplace_back(dup(good.fds[0].get()));
    return decode_request(bad).error;
  };
  EXPECT_EQ(refused("\"bytes\":48", "\"bytes\":56"), "shared memory is shorter than announced");
  EXPECT_EQ(refused("\"expected_at\":4", "\"expected_at\":5"),
            "a tensor lies beyond the end of the frame's data");
  EXPECT_EQ(refused("\"bytes\":48", "\"bytes\":48", false),
            "expected values come with one descriptor");
}

TEST(Messages, ATensorThatIsAsExpectedIsNotSent) {
  const ExpectedValues expected = expected_values();
  RankResult r;
  r.gradients = {*expected.gradients[0][0], std::nullopt, numbers({2}, {7, 8})};
  r.steps = {numbers({2}, {5, 6})};  // equal, and memory of its own
  const Frame frame = received(*encode(WorkReply{1, r, {}, "", 0}, &expected.payload));
  EXPECT_EQ(frame.payload.size(), 4U);
  const auto got = decode_reply(frame, &expected.payload);
  const auto& result = std::get<RankResult>(got.value.value().what);
  EXPECT_EQ(result.gradients.at(0)->values().data(), expected.payload.values.data());
  EXPECT_THAT(*result.gradients[0], IsArray(*expected.gradients[0][0]));
  EXPECT_THAT(*result.gradients.at(2), IsArray(*r.gradients[2]));
  EXPECT_THAT(result.steps.at(0), IsArray(r.steps[0]));
  EXPECT_EQ(decode_reply(frame).error, "a tensor is said to be as expected, and none was");
}

TEST(ExpectedValues, OnlyTheSameBitsInTheSameShapeAreAsExpected) {
  const ExpectedValues expected = expected_values();
  const double* first = expected.payload.values.data();
  const auto is_expected = [&](Array own, std::size_t which = 0, int rank = 0) {
    const std::vector<double> before(own.values().begin(), own.values().end());
    const Array taken = expected_or(std::move(own), expected.gradients, which, rank);
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(same(taken.values()[i], before[i]));
    return taken.values().data() == first;
  };
  const std::vector<double> right = {1, -0.0, kNan, kInf};
  EXPECT_TRUE(is_expected(numbers({2, 2}, right)));
  EXPECT_FALSE(is_expected(numbers({4}, right)));
  EXPECT_FALSE(is_expected(numbers({2, 2}, {1, 0.0, kNan, kInf})));
  EXPECT_FALSE(is_expected(numbers({2, 2}, {1, -0.0, -kNan, kInf})));
  EXPECT_FALSE(is_expected(numbers({2, 2}, {1, -0.0, kNan, -kInf})));
  EXPECT_FALSE(is_expected(numbers({2, 2}, right), 0, 1)) << "nothing is expected of that rank";
  EXPECT_FALSE(is_expected(numbers({2, 2}, right), 1)) << "nor of that input";
  EXPECT_FALSE(is_expected(numbers({2, 2}, right), 7));
}

TEST(ExpectedValues, ALargeTensorThatDiffersInItsLastElementIsNotAsExpected) {
  std::vector<double> values(700'000);
  std::iota(values.begin(), values.end(), 0);
  ExpectedValues expected;
  expected.payload = shared_payload(values);
  expected.gradients = {
      {Array({700'000}, expected.payload.values.data(), expected.payload.keeper)}};
  const auto taken = [&] {
    return expected_or(Array({700'000}, values), expected.gradients, 0, 0).values();
  };
  EXPECT_EQ(taken().data(), expected.payload.values.data());
  EXPECT_TRUE(std::ranges::equal(taken(), values)) << "let go, and read again";
  values.back() = -1;
  EXPECT_EQ(expected_or(Array({700'000}, values), expected.gradients, 0, 0)[699'999], -1);
}

TEST(Messages, ControlMessages) {
  const auto request = [](const ZygoteRequest& r) {
    return round_trip<ZygoteRequest>(encode(r), decode_zygote_request);
  };
  const auto fork = std::get<ForkWorker>(request(ForkWorker{9, WorkerRole::kRank, 3, 5}));
  EXPECT_EQ(fork.worker, 9U);
  EXPECT_EQ(fork.role, WorkerRole::kRank);
  EXPECT_EQ(fork.rank, 3);
  EXPECT_EQ(fork.world_size, 5);
  EXPECT_EQ(fork.exec, "");
  EXPECT_EQ(fork.place, -1);
  EXPECT_EQ(std::get<ForkWorker>(request(ForkWorker{9, WorkerRole::kRank, 3, 5, "", 2})).place, 2);
  EXPECT_EQ(
      std::get<ForkWorker>(request(ForkWorker{9, WorkerRole::kRank, 3, 5, "nccl on cuda"})).exec,
      "nccl on cuda");
  EXPECT_EQ(std::get<ForkWorker>(request(ForkWorker{1, WorkerRole::kSimulator, 0, 1})).role,
            WorkerRole::kSimulator);
  EXPECT_EQ(std::get<KillWorker>(request(KillWorker{4})).worker, 4U);
  EXPECT_EQ(std::get<LookAtWorker>(request(LookAtWorker{5})).worker, 5U);

  const auto event = [](const ZygoteEvent& e) {
    return round_trip<ZygoteEvent>(encode(e), decode_zygote_event);
  };
  EXPECT_EQ(std::get<ZygoteReady>(event(ZygoteReady{2, "2.15"})).protocol, 2);
  EXPECT_EQ(std::get<ZygoteReady>(event(ZygoteReady{2, "2.15"})).torch, "2.15");
  EXPECT_EQ(std::get<WorkerForked>(event(WorkerForked{1, 77})).pid, 77);
  EXPECT_EQ(std::get<WorkerExited>(event(WorkerExited{1, 139})).wait_status, 139);
  EXPECT_EQ(std::get<ForkFailed>(event(ForkFailed{1, "no"})).message, "no");
}

std::string decode_error(const std::string& header, std::vector<double> payload = {}) {
  const std::vector<std::span<const double>> pieces = {payload};
  const auto result = decode_reply(received(*make_frame(header, pieces)));
  return result.value ? "decoded" : result.error;
}

TEST(Messages, WhatIsNoMessage) {
  EXPECT_EQ(decode_error("{"), "a frame's header is not JSON");
  EXPECT_EQ(decode_error("[]"), "not an object: a list");
  EXPECT_EQ(decode_error("{}"), "\"id\" is missing");
  EXPECT_EQ(decode_error(R"({"kind":"result","id":-1})"), "not a non-negative integer: -1");
  EXPECT_EQ(decode_error(R"({"id":1})"), "\"kind\" is missing");
  EXPECT_EQ(decode_error(R"({"kind":"nonsense","id":1,"elapsed_ns":0})"),
            "unknown message \"nonsense\"");
}

std::string tensor_error(const std::string& tensor, std::vector<double> payload) {
  return decode_error(
      R"({"kind":"result","id":1,"elapsed_ns":0,"loss":1,"loss_shape":[],"gradients":[)" + tensor +
          R"(],"steps":[],"warnings":[],"composed":[],"skipped":""})",
      std::move(payload));
}

TEST(Messages, NestingIsRefusedBeforeItIsWalkedThrough) {
  const std::string deep(1'000'000, '[');
  EXPECT_EQ(decode_error(deep), "a frame's header is nested too deeply");
  EXPECT_EQ(decode_error(R"({"kind":)" + deep), "a frame's header is nested too deeply");
  EXPECT_NE(decode_error('"' + deep + '"'), "a frame's header is nested too deeply")
      << "brackets in a text";
}

TEST(Messages, StridesThatNoTensorHas) {
  const auto observed = [](const std::string& strides) {
    return decode_error(
        R"({"kind":"result","id":1,"elapsed_ns":0,"loss":1,"loss_shape":[],"gradients":[],"steps":[],"warnings":[],)"
        R"("composed":[],"skipped":"","observed":[{"step":"y","operand":{"shape":[2],"at":0},"operand_strides":)" +
            strides + R"(,"cotangent":null,"cotangent_strides":[],"given":null}]})",
        {1, 2});
  };
  EXPECT_EQ(observed("[1]"), "decoded");
  EXPECT_NE(observed("[-1]"), "decoded");
  EXPECT_NE(observed("[1.5]"), "decoded");
  EXPECT_NE(observed("1"), "decoded");
}

TEST(Messages, TensorsThatDoNotLieInTheData) {
  EXPECT_EQ(tensor_error(R"({"shape":[2],"at":1})", {1, 2, 3}), "decoded");
  EXPECT_EQ(tensor_error(R"({"shape":[0],"at":3})", {1, 2, 3}), "decoded");
  const std::string beyond = "a tensor lies beyond the end of the frame's data";
  EXPECT_EQ(tensor_error(R"({"shape":[3],"at":1})", {1, 2, 3}), beyond);
  EXPECT_EQ(tensor_error(R"({"shape":[1],"at":0})", {}), beyond);
  EXPECT_EQ(tensor_error(R"({"shape":[4294967296,4294967296],"at":0})", {1}),
            "a tensor is too large");
  EXPECT_EQ(tensor_error(R"({"shape":[0,281474976710656,281474976710656],"at":0})", {1}),
            "a tensor is too large");
  EXPECT_EQ(tensor_error(R"({"shape":[-1],"at":0})", {1}), "an integer is out of range: -1");
  EXPECT_EQ(tensor_error(R"({"shape":[1.5],"at":0})", {1}), "not an integer: 1.5");
  EXPECT_EQ(tensor_error(R"({"shape":[1],"at":18446744073709551615})", {1}),
            "an integer is out of range: 18446744073709551615");
  EXPECT_EQ(tensor_error("7", {1}), "not an object: 7");
}

// Any change of any request's header decodes or is refused; nothing else happens (run under ASan).
TEST(Messages, SurviveChangedHeaders) {
  SimulateRequest request;
  request.program = full_program();
  const Frame good = received(*encode_request(1, request));
  std::mt19937 random(0);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    Frame bad;
    bad.header = good.header;
    bad.payload = good.payload;
    for (int k = 0; k < 2; ++k)
      bad.header[random() % bad.header.size()] = static_cast<char>(' ' + random() % 95);
    refused += !decode_request(bad).value;
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace distgrad
