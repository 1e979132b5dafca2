// Results, refusals and their texts, data types, limits, cache and garbage.
#include "rank/expression/expression.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DefaultDtype.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "rank/expression/evaluation_scope.h"
#include "rank/expression/mutants.h"

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const Scope kScope = {{"x", NameType::kTensor},
                      {"xx", NameType::kTensor},
                      {"rank", NameType::kInt},
                      {"world_size", NameType::kInt},
                      {"parts", NameType::kTensorList}};

at::Tensor evaluate(const std::string& text, DType dtype = DType::kFloat64,
                    NumberResult numbers = NumberResult::kRefuse) {
  const auto compiled = compile_expression(text, kScope, dtype, numbers);
  std::vector<c10::IValue> values;
  for (const std::string& name : compiled->names()) {
    if (name == "rank") values.emplace_back(1);
    if (name == "world_size") values.emplace_back(2);
    if (name == "x") values.emplace_back(at::ones({2, 3}, at::kDouble));
    if (name == "xx") values.emplace_back(at::ones({3}, at::kDouble));
    if (name == "parts") values.emplace_back(c10::List<at::Tensor>({at::ones({2}), at::ones({2})}));
  }
  return compiled->evaluate(std::move(values));
}

// The message and the caret, or "accepted".
std::string refusal(const std::string& text, NumberResult numbers = NumberResult::kRefuse) {
  try {
    evaluate(text, DType::kFloat64, numbers);
  } catch (const InvalidExpression& error) {
    return std::string(error.what()) + (error.caret().empty() ? "" : "\n" + error.caret());
  }
  return "accepted";
}

// Torch's device without memory stands for a GPU.
TEST(Expression, ConstructorsMakeTheirTensorsWhereTheyAreTold) {
  const ConstructorDevice there(at::kMeta);
  for (const char* text :
       {"torch.zeros(2)", "torch.ones([2, 3])", "torch.full([2], 1.5)", "torch.arange(3)",
        "torch.linspace(0, 1, 3)", "torch.eye(2)", "torch.tensor([1.0, 2.0])", "torch.tensor(3.0)",
        "torch.zeros(2) + torch.ones(2)",
        "torch.stack([torch.zeros(2), torch.tensor([1.0, rank])])"})
    EXPECT_EQ(evaluate(text).device(), at::Device(at::kMeta)) << text;
  for (const char* text :
       {"torch.zeros_like(x)", "x.new_zeros([2])", "x * 2", "x.to(torch.float32)", "xx + 1"})
    EXPECT_EQ(evaluate(text).device(), at::Device(at::kCPU)) << text;
}

TEST(Expression, ConstructorsMakeThemOnTheCpuAgainAfterwards) {
  { const ConstructorDevice there(at::kMeta); }
  EXPECT_EQ(evaluate("torch.zeros(2)").device(), at::Device(at::kCPU));
}

TEST(Expression, GivesTheValueOfItsNamesInOrder) {
  const auto compiled = compile_expression("(rank + 2) * xx", kScope, DType::kFloat64);
  EXPECT_THAT(compiled->names(), ElementsAre("rank", "xx"));
  EXPECT_EQ(compiled->evaluate({3, at::scalar_tensor(2.0, at::kDouble)}).item<double>(), 10);
  EXPECT_EQ(compiled->evaluate({0, at::scalar_tensor(2.0, at::kDouble)}).item<double>(), 4);
}

TEST(Expression, IsRecordedByAutograd) {
  const auto compiled = compile_expression("(x * x).sum() + rank", kScope, DType::kFloat64);
  const at::Tensor x = at::ones({3}, at::kDouble).mul_(2).set_requires_grad(true);
  compiled->evaluate({1, x}).backward();
  EXPECT_EQ(x.grad().sum().item<double>(), 12);
}

TEST(Expression, IsCompiledOnceForItsTypes) {
  const auto first = compile_expression("x * 2", kScope, DType::kFloat32);
  EXPECT_EQ(first, compile_expression("x * 2", {{"x", NameType::kTensor}}, DType::kFloat32));
  EXPECT_NE(first, compile_expression("x * 2", kScope, DType::kFloat64));
  // A number does for inputs, but not for steps, whichever came first.
  EXPECT_NO_THROW(compile_expression("rank * 2", kScope, DType::kFloat32, NumberResult::kAccept));
  EXPECT_THROW(compile_expression("rank * 2", kScope, DType::kFloat32), InvalidExpression);
  EXPECT_NO_THROW(
      compile_expression("x * 2", {{"x", NameType::kInt}}, DType::kFloat32, NumberResult::kAccept));
  EXPECT_THROW(compile_expression("x * 2", {{"y", NameType::kTensor}}, DType::kFloat32),
               InvalidExpression);
}

TEST(Expression, NumbersBecomeTensorsWhereAccepted) {
  for (const char* text : {"1 / 4", "rank / 4", "0.25"}) {
    const at::Tensor value = evaluate(text, DType::kFloat32, NumberResult::kAccept);
    EXPECT_EQ(value.scalar_type(), at::kFloat) << text;
    EXPECT_EQ(value.item<double>(), 0.25) << text;
    EXPECT_EQ(value.dim(), 0) << text;
  }
  EXPECT_EQ(evaluate("rank == 1", DType::kBFloat16, NumberResult::kAccept).item<double>(), 1);
}

// ---- data types

TEST(ExpressionDType, ConstructorsGiveTheCasesDtype) {
  const std::pair<DType, at::ScalarType> dtypes[] = {{DType::kFloat64, at::kDouble},
                                                     {DType::kFloat32, at::kFloat},
                                                     {DType::kBFloat16, at::kBFloat16},
                                                     {DType::kFloat16, at::kHalf}};
  for (const auto& [dtype, type] : dtypes) {
    for (const char* text :
         {"torch.zeros(2)", "torch.ones(2)", "torch.full((2,), 0.5)", "torch.eye(2)",
          "torch.linspace(0, 1, 2)", "torch.logspace(0, 1, 2)", "torch.arange(0, 1, 0.5)",
          "torch.arange(2.0)", "torch.tensor(0.5)", "torch.tensor([0.5, 1])", "torch.tensor([])",
          "torch.scalar_tensor(1)", "torch.sqrt(torch.arange(3))", "torch.arange(3) / 2",
          "torch.arange(3) * 0.5"})
      EXPECT_EQ(evaluate(text, dtype).scalar_type(), type) << text;
    for (const char* text : {"torch.arange(3)", "torch.tensor([1, 2])", "torch.full((2,), 1)"})
      EXPECT_EQ(evaluate(text, dtype).scalar_type(), at::kLong) << text;
    EXPECT_EQ(evaluate("x.float()", dtype).scalar_type(), at::kFloat);
    EXPECT_EQ(evaluate("torch.zeros(2, dtype=torch.float64)", dtype).scalar_type(), at::kDouble);
    EXPECT_EQ(evaluate("torch.zeros_like(x)", dtype).scalar_type(), at::kDouble);
  }
}

// TorchScript's own torch.tensor writes float64 bits into memory of the narrow types.
TEST(ExpressionDType, TensorsOfNarrowTypesHoldTheRoundedNumbers) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    const at::Tensor value = evaluate("torch.tensor([[0.1, 0.2], [-3, 1e-3]])", dtype);
    const double exact[] = {0.1, 0.2, -3, 1e-3};
    const at::Tensor wide = value.to(at::kDouble).contiguous();
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(wide.const_data_ptr<double>()[i], at::scalar_tensor(exact[i], at::kDouble)
                                                      .to(value.scalar_type())
                                                      .to(at::kDouble)
                                                      .item<double>());
  }
}

TEST(ExpressionDType, TorchsDefaultIsLeftAsItWas) {
  const caffe2::TypeMeta before = c10::get_default_dtype();
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  evaluate("torch.zeros(2)", DType::kBFloat16);
  EXPECT_THROW(evaluate("torch.zeros(2) + torch.zeros(3)", DType::kBFloat16), InvalidExpression);
  EXPECT_EQ(c10::get_default_dtype(), before);
  EXPECT_EQ(c10::GetCPUAllocator(), allocator);
}

// ---- names

TEST(ExpressionNames, AreTheFreeOnesOfTheScope) {
  EXPECT_THAT(names_used("x.xx + torch.sum(x, rank=1) * len('xx')", kScope), ElementsAre("x"));
  EXPECT_THAT(names_used("xx if rank == x else parts[0]", kScope),
              ElementsAre("parts", "rank", "x", "xx"));
  EXPECT_THAT(names_used("[x for x in parts if x.sum() > 1]", kScope), ElementsAre("parts"));
  EXPECT_THAT(names_used("[rank for x in x]", kScope), ElementsAre("rank", "x"));
  EXPECT_THAT(names_used("sum(xx for xx in parts) + xx", kScope), ElementsAre("parts", "xx"));
  EXPECT_THAT(names_used("f(x=rank, y=(x == 1))", kScope), ElementsAre("rank", "x"));
  EXPECT_THAT(names_used("unknown + 1", kScope), IsEmpty());
  EXPECT_THROW(names_used("x +", kScope), InvalidExpression);
}

// Texts that differ in names alone share what is compiled: not the order of their values, their
// types or their carets.
TEST(Expression, SharedCodeKeepsNamesTypesAndPlaces) {
  const Scope scope = {{"a", NameType::kTensor},
                       {"long_name", NameType::kTensor},
                       {"z", NameType::kTensor},
                       {"n", NameType::kInt}};
  const auto number = [&](const std::string& text, const std::map<std::string, double>& values) {
    const auto compiled = compile_expression(text, scope, DType::kFloat64);
    std::vector<c10::IValue> given;
    for (const std::string& name : compiled->names())
      given.emplace_back(name == "n"
                             ? c10::IValue(3)
                             : c10::IValue(at::scalar_tensor(values.at(name), at::kDouble)));
    return compiled->evaluate(std::move(given)).item<double>();
  };
  EXPECT_EQ(number("z - 2 * a", {{"z", 1}, {"a", 3}}), -5);
  EXPECT_EQ(number("a - 2 * z", {{"z", 1}, {"a", 3}}), 1);
  EXPECT_EQ(number("a - 2 * a", {{"a", 3}}), -3);
  EXPECT_EQ(number("a - 2 * n", {{"a", 3}}), -3);
  EXPECT_EQ(number("a - 3 * z", {{"z", 1}, {"a", 3}}), 0);
  EXPECT_EQ(number("(a / 2.0) + z", {{"z", 1}, {"a", 3}}), 2.5);
  EXPECT_EQ(number("(a / 4.0) + z", {{"z", 1}, {"a", 4}}), 2);
  const auto caret = [&](const std::string& text) {
    const auto compiled = compile_expression(text, scope, DType::kFloat64);
    try {
      compiled->evaluate({at::ones({2, 3}), at::ones({2, 3})});
    } catch (const InvalidExpression& error) {
      return error.caret();
    }
    return std::string();
  };
  EXPECT_EQ(caret("a @ z"), "a @ z\n  ^");
  EXPECT_EQ(caret("long_name @ z"), "long_name @ z\n          ^");
  std::string sum = "a";
  for (int i = 0; i < 100; ++i) sum += " + a";
  EXPECT_EQ(caret(sum + " @ z"),
            "..." + sum.substr(sum.size() - 59) + " @ z\n" + std::string(3 + 60, ' ') + "^");
  EXPECT_EQ(caret("a @ z" + sum.substr(1)), "a @ z" + sum.substr(1, 57) + "...\n  ^");
}

// Nor the numbers of the text, nor what they decide.
TEST(Expression, SharedCodeKeepsNumbers) {
  const Scope scope = {{"x", NameType::kTensor}, {"n", NameType::kInt}};
  const at::Tensor x = at::arange(6, at::kDouble).reshape({2, 3});
  const auto value = [&](const std::string& text) {
    const auto compiled = compile_expression(text, scope, DType::kFloat64, NumberResult::kAccept);
    std::vector<c10::IValue> given;
    for (const std::string& name : compiled->names())
      given.push_back(name == "x" ? c10::IValue(x) : c10::IValue(3));
    return compiled->evaluate(std::move(given));
  };
  const auto number = [&](const std::string& text) { return value(text).item<double>(); };
  EXPECT_EQ(number("7"), 7);
  EXPECT_EQ(number("8"), 8);
  EXPECT_EQ(number("0.5"), 0.5);
  EXPECT_EQ(number("2 * n + 1"), 7);
  EXPECT_EQ(number("3 * n + 5"), 14);
  EXPECT_EQ(number("(x * 2).sum() - 1.5"), 28.5);
  EXPECT_EQ(number("(x * 3).sum() - 0.5"), 44.5);
  EXPECT_EQ(value("x.sum(0)").sizes(), (at::IntArrayRef{3}));
  EXPECT_EQ(value("x.sum(1)").sizes(), (at::IntArrayRef{2}));
  EXPECT_EQ(value("x.sum(dim=1)").sizes(), (at::IntArrayRef{2}));
  EXPECT_EQ(value("x.sum(dim=0)").sizes(), (at::IntArrayRef{3}));
  EXPECT_EQ(value("x[0:1]").sizes(), (at::IntArrayRef{1, 3}));
  EXPECT_EQ(value("x[0:2]").sizes(), (at::IntArrayRef{2, 3}));
  EXPECT_EQ(number("(x, n)[1]"), 3);
  EXPECT_EQ(number("(x, n)[0].sum()"), 15);
  EXPECT_EQ(number("[1 if n > 2 else 0][0] + 10"), 11);
  EXPECT_EQ(number("[1 if n > 5 else 0][0] + 10"), 10);
  EXPECT_EQ(value("torch.tensor(2 ** 3)").item<double>(), 8);
  EXPECT_EQ(value("torch.tensor(2 ** 4)").item<double>(), 16);
  EXPECT_EQ(value("x * 2").scalar_type(), at::kDouble);
  EXPECT_EQ(value("torch.ones([2, 3])").sizes(), (at::IntArrayRef{2, 3}));
  EXPECT_EQ(value("torch.ones([4, 1])").sizes(), (at::IntArrayRef{4, 1}));
  // What fails tells of its own numbers.
  EXPECT_EQ(value("x.reshape(3, 2)").sizes(), (at::IntArrayRef{3, 2}));
  try {
    value("x.reshape(4, 2)");
    FAIL();
  } catch (const InvalidExpression& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("'[4, 2]' is invalid"));
  }
}

// ---- refusals: message and caret, word for word

TEST(ExpressionRefusal, SaysWhatAndWhere) {
  const std::pair<const char*, const char*> refusals[] = {
      {"", "the expression is empty"},
      {"   ", "the expression is empty\n   \n^"},
      {"x + xy",
       "unknown name \"xy\"; did you mean \"x\"? names here: parts, rank, world_size, x, xx\nx + "
       "xy\n    ^"},
      {"F.relu(x)", "unknown name \"F\"; write torch.nn.functional.relu\nF.relu(x)\n^"},
      {"F.normalize(x)",
       "unknown name \"F\"; write x / torch.linalg.vector_norm(x, dim=1, "
       "keepdim=True).clamp_min(1e-12)\nF.normalize(x)\n^"},
      {"torch.nn.functional.normalize(x)",
       "torch.nn.functional.normalize is not a pure tensor function and is not allowed in a "
       "scenario; write x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1e-12)\n"
       "torch.nn.functional.normalize(x)\n                    ^"},
      {"x +", "expected an expression before the end\nx +\n   ^"},
      {"(x + 1", "expected ')' before the end\n(x + 1\n      ^"},
      {"x + 1)", "expected an operator, not ')'\nx + 1)\n     ^"},
      {"torch.save(x, 'path')",
       "torch.save is not a pure tensor function and is not allowed in a scenario; it touches "
       "files\n"
       "torch.save(x, 'path')\n      ^"},
      {"x.sqare()",
       ".sqare is not a pure tensor function and is not allowed in a scenario; did you mean "
       "\"square\"?\n"
       "x.sqare()\n  ^"},
      {"torch.sotfmax(x, 0)",
       "torch.sotfmax is not a pure tensor function and is not allowed in a scenario; did you mean "
       "\"softmax\"?\n"
       "torch.sotfmax(x, 0)\n      ^"},
      {"x.add_(1)",
       ".add_ is not a pure tensor function and is not allowed in a scenario; it works in place, "
       "write add\n"
       "x.add_(1)\n  ^"},
      {"[x, x]",
       "this is a list of tensors, not a tensor; write torch.stack(...) or torch.cat(...)\n[x, "
       "x]\n^"},
      {"rank + 1", "this is an int, not a tensor; write torch.tensor(...)\nrank + 1\n     ^"},
      {"rank == 1", "this is a bool, not a tensor; write torch.tensor(...)\nrank == 1\n     ^"},
      {"1 / 2", "this is a float, not a tensor; write torch.tensor(...)\n1 / 2\n  ^"},
      {"'abc'", "this is a string, not a tensor\n'abc'\n^"},
      {"None", "this is None, not a tensor\nNone\n^"},
      {"x.max(0)", "this is a tuple, not a tensor; take one element, such as [0]\nx.max(0)\n  ^"},
      {"x, x", "this is a tuple, not a tensor; one step has one value\nx, x\n ^"},
      {"x = 1", "an assignment is not an expression; use == to compare\nx = 1\n  ^"},
      {"0 < rank < 2",
       "chained comparisons are not part of the scenario language; write a < b and b < c\n0 < rank "
       "< 2\n         ^"},
      {"x and xx",
       "'and' joins comparisons, not a tensor; write torch.logical_and(x, y)\nx and xx\n^"},
      {"x if rank == 0 else 1",
       "the two branches are of different types, a tensor and an int\nx if rank == 0 else 1\n  ^"},
      {"x[0.5]",
       "a tensor is indexed by integers, slices, tensors or lists of integers, not by a "
       "float\nx[0.5]\n  ^"},
      {"torch.full((2,), torch.float32)",
       "a data type stands only in dtype=..., x.to(...), == and !=\ntorch.full((2,), "
       "torch.float32)\n      ^"},
      {"torch.zeros(torch.float64)",
       "a data type stands only in dtype=..., x.to(...), == and !=\ntorch.zeros(torch.float64)\n   "
       "   ^"},
      {"torch.ones(4).view(torch.int64)",
       "a data type stands only in dtype=..., x.to(...), == and "
       "!=\ntorch.ones(4).view(torch.int64)\n              ^"},
      {"torch.zeros(2, dtype=3)",
       "dtype must be a data type such as torch.float32\ntorch.zeros(2, dtype=3)\n      ^"},
      {"rank.abs()", "an int has no method abs\nrank.abs()\n     ^"},
      {"torch.linalg_norm(x)",
       "torch.linalg_norm is not a pure tensor function and is not allowed in a scenario; write "
       "torch.linalg.norm\n"
       "torch.linalg_norm(x)\n      ^"},
      {"softmax(x, 0)", "unknown function softmax; write torch.softmax\nsoftmax(x, 0)\n^"},
      {"x % (1 - rank)", "accepted"},
      {"x * (7 % (1 - rank))", "division by zero\nx * (7 % (1 - rank))\n       ^"},
      {"x * (1.5 / (rank - 1))", "division by zero\nx * (1.5 / (rank - 1))\n         ^"},
      {"x * 10 ** (rank * 20)",
       "the integer does not fit in 64 bits\nx * 10 ** (rank * 20)\n       ^"},
      {"x * (-8.0) ** 0.5",
       "a negative number to a fractional power is complex\nx * (-8.0) ** 0.5\n           ^"},
      {"parts[2]", "index 2 is out of range for a list of 2\nparts[2]\n     ^"},
      {"x + torch.ones(2)",
       "The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 1\n"
       "x + torch.ones(2)\n  ^"},
      {"len('é') + y", "a string has no length\nlen('é') + y\n^"},
      {"('é', abc)",
       "unknown name \"abc\"; names here: parts, rank, world_size, x, xx\n('é', abc)\n      ^"},
  };
  for (const auto& [text, expected] : refusals) EXPECT_EQ(refusal(text), expected) << text;
}

TEST(ExpressionRefusal, SaysWhichArgumentDoesNotFit) {
  EXPECT_THAT(refusal("torch.stack(x)"),
              HasSubstr("torch.stack: Expected a value of type 'List[Tensor]'"));
  EXPECT_THAT(refusal("x.sum(dims=0)"),
              HasSubstr(".sum has no argument dims; did you mean \"dim\"?"));
  EXPECT_THAT(refusal("torch.dot(xx)"), HasSubstr("torch.dot: Argument tensor not provided\n"));
  EXPECT_THAT(refusal("torch.softmax(xx, xx)"), HasSubstr("write int(x) or float(x)"));
  EXPECT_THAT(refusal("torch.sqrt(2)"), HasSubstr("torch.sqrt: Expected a value of type 'Tensor'"));
  for (const char* text : {"torch.stack(x)", "x.sum(dims=0)", "torch.dot(xx)", "torch.sqrt(2)"}) {
    const std::string text_of_it = refusal(text);
    EXPECT_EQ(std::count(text_of_it.begin(), text_of_it.end(), '\n'), 2) << text_of_it;
  }
}

TEST(ExpressionRefusal, CoversWhateverIsNotAPureTensorFunction) {
  const char* const forbidden[] = {
      "torch.from_file('/etc/passwd')",
      "torch.save(x, 'f')",
      "torch.load('f')",
      "print(x)",
      "open('f')",
      "__import__('os')",
      "exec('1')",
      "eval('x')",
      "torch.rand(2)",
      "torch.randn(2)",
      "torch.rand_like(x)",
      "torch.randint(3, (2,))",
      "torch.randperm(3)",
      "torch.bernoulli(x)",
      "x.bernoulli()",
      "torch.normal(x, x)",
      "torch.manual_seed(1)",
      "torch.seed()",
      "torch.initial_seed()",
      "torch.dropout(x, 0.5, True)",
      "torch.nn.functional.dropout(x)",
      "torch.nn.functional.rrelu(x)",
      "torch.multinomial(x, 1)",
      "x.add_(1)",
      "x.zero_()",
      "x.random_()",
      "x.requires_grad_()",
      "x.set_(x)",
      "x.copy_(xx)",
      "x.resize_(1)",
      "x.data",
      "x.grad",
      "x.backward()",
      "x[0] = 1",
      "x += 1",
      "torch.ops.aten.add(x, x)",
      "os.system('true')",
      "torch.os.system('true')",
      "(lambda: x)()",
      "lambda: x",
      "assert x",
      "(y := x)",
      "x := 1",
      "x; x",
      "x\nx",
      "x\n  import os",
      "x)\n  return (x",
      "def f(): pass",
      "import os",
      "del x",
      "return x",
      "yield x",
      "await x",
      "raise x",
      "global x",
      "with x",
      "x.__class__",
      "x.__reduce__()",
      "x.numpy()",
      "x.tolist()",
      "x.data_ptr()",
      "x.storage()",
      "torch.empty(2)",
      "torch.empty_like(x)",
      "torch.as_strided(x, (9,), (9,))",
      "x.as_strided((9,), (9,))",
      "torch.set_default_dtype(torch.float32)",
      "torch.set_num_threads(1)",
      "torch.jit.script(x)",
      "torch.compile(x)",
      "torch.utils.data",
      "torch.cuda.synchronize()",
      "torch.distributed.all_reduce(x)",
      "torch.autograd.grad(x, x)",
      "torch.no_grad()",
      "torch.add(x, x, out=x)",
      "torch.zeros(2, device='cuda')",
      "x.to('cuda')",
      "x.to(device='cpu')",
      "x.cuda()",
      "x.cpu()",
      "torch.zeros(2, requires_grad=True)",
      "torch.zeros(2, pin_memory=True)",
      "x.sum('N')",
      "getattr(x, 'sum')()",
      "type(x)",
      "x.__add__(1)",
      "f'{x}'",
      "r'x'",
      "{'a': x}['a']",
      "{x}",
      "x if True",
      "x is None",
      "x in parts",
      "x not in parts",
      "1.5 in [1.5]",
      "rank is 1",
      "0 in [0] in [0]",
      "x in x",
      "x.to(rank)",
      "x.to(6)",
      "torch.nn.functional.binary_cross_entropy(xx / 2, x / 2)",
      "*parts",
      "torch.stack([*parts])",
      "torch.stack(*parts)",
      "torch.sum(**x)",
      "x.apply_(x)",
      "x.register_hook(x)",
      "torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False)",
      "torch.tensor(x)",
      "0x10 * x",
      "1_0 * x",
      "1j * x",
      "010 * x",
      "x # comment",
      "x \\\n + 1",
      "'a' 'b'",
      "'''a'''",
      "x..sum()",
      "x.sum(",
      "x[",
      "x[]",
      "x[1",
      "x.",
      ".x",
      "x x",
      "x 1",
      "1 x",
      "1x",
      "x if",
      "[x for]",
      "[x for x in]",
      "(x for x in parts)",
      "torch.stack(t for t in parts)",
      "[a for a in parts for b in parts]",
      "range(3)",
      "x.shape",
      "torch.float32",
      "torch.pi",
      "torch",
      "torch.nn",
      "torch.nn.functional",
      "torch.sum",
      "x.sum",
      "len",
      "torch.wait(x)",
      "torch.fork(x)",
      "prim.Print(x)",
      "torch.warn('x')",
      "torch.is_grad_enabled()",
      "torch.Generator()",
      "torch.device('cpu')",
      "torch.get_device(x)",
      "torch.format('{}', x)",
      "x.to_mkldnn()",
      "torch.sparse_coo_tensor(x, x)",
      "torch._foreach_add([x], 1)",
      "torch._assert_async(x)",
      "torch.nn.Linear(1, 1)",
      "torch.special.expit(x)",
      "torch.fft.fft(x)",
      "sum([0.5, 0.5]) * x",
      "x.shape + (1,)",
      "rank ** x ** 'a'",
      "torch.einsum('ij' + 'k', x)",
      "'a' * 3",
      "x[rank]()",
      "x()",
      "(x)(x)",
      "1()",
      "rank()",
      "x.T()",
  };
  for (const char* text : forbidden) EXPECT_NE(refusal(text), "accepted") << text;
}

// Refused however it is spelt: every operator that torch has and that is not on the list, through
// the front door.
TEST(ExpressionRefusal, SaysWhyInTheContractsWords) {
  for (const char* name :
       {"save", "from_file", "rand", "manual_seed", "dropout", "empty", "set_default_dtype"})
    EXPECT_THAT(refusal("torch." + std::string(name) + "(x)"),
                HasSubstr("torch." + std::string(name) +
                          " is not a pure tensor function and is not allowed in a scenario"));
}

// ---- limits

TEST(ExpressionLimits, MemoryIsBounded) {
  for (const char* text :
       {"torch.zeros(10**12)", "torch.ones(2**31)", "torch.full((2**20, 2**20), 1.0)",
        "torch.eye(10**9)", "xx.expand(10**12, 3).sum()", "torch.arange(10**12)",
        "torch.linspace(0, 1, 10**11)", "xx.repeat(10**12)", "xx.expand(10**12, 3) + 1",
        "torch.tril_indices(10**6, 10**6)",
        "torch.nn.functional.one_hot(torch.arange(10**5), 10**7)",
        "torch.zeros(10**5, 1) + torch.zeros(10**5)", "torch.tensor([1.0] * 10**12)",
        "torch.tensor([k for k in range(10**12)])",
        "torch.tensor([j for j in [1] * 10**5 for k in range(10)])"})
    EXPECT_NE(refusal(text), "accepted") << text;
  EXPECT_THAT(refusal("torch.zeros(10**12)"), HasSubstr("is too large for an expression"));
}

TEST(ExpressionLimits, AQuotientThatDoesNotFitIsAnError) {
  const std::string least = "(torch.full((3,), -9223372036854775807, dtype=torch.int64) - 1)";
  const std::string least32 = "(torch.full((3,), -2147483647, dtype=torch.int32) - 1)";
  const std::string by = ", rounding_mode='trunc')";
  EXPECT_THAT(refusal("torch.div(" + least + ", torch.tensor([2, -1, 1])" + by),
              HasSubstr("-9223372036854775808 / -1 does not fit into int64"));
  EXPECT_THAT(refusal("torch.div(" + least + ", -1" + by), HasSubstr("does not fit into int64"));
  EXPECT_THAT(refusal(least + ".divide(torch.tensor([[1], [-1]])" + by),
              HasSubstr("does not fit into int64"));
  EXPECT_THAT(refusal(least32 + ".div(-1" + by), HasSubstr("does not fit into int32"));
  // Of a wider type, of floats, and by anything else it does.
  EXPECT_EQ(refusal("torch.div(" + least32 + ", torch.tensor([-1, -1, -1])" + by), "accepted");
  EXPECT_EQ(refusal("torch.div(" + least + " * 1.0, -1" + by), "accepted");
  EXPECT_EQ(refusal("torch.div(" + least + ", torch.tensor([1, 2, -2])" + by), "accepted");
}

TEST(ExpressionLimits, MemoryHeldAtATimeIsBounded) {
  constexpr std::size_t kNearly = kMaxTensorBytes - (std::size_t{1} << 20);  // malloc adds some
  const auto allocate = [](std::size_t bytes) { return c10::GetCPUAllocator()->allocate(bytes); };
  std::vector<c10::DataPtr> held;
  {
    const EvaluationScope scope(at::kFloat);
    EXPECT_THROW(allocate(kMaxTensorBytes + 1), c10::Error);
    for (int i = 0; i < 10; ++i) allocate(kNearly);  // freed at once
    for (std::size_t bytes = 0; bytes < kMaxEvaluationBytes; bytes += kMaxTensorBytes)
      held.push_back(allocate(kNearly));
    EXPECT_THROW(allocate(kNearly), c10::Error);
    held.pop_back();
    EXPECT_NO_THROW(allocate(kNearly));
  }
  EXPECT_NO_THROW(allocate(2 * kMaxTensorBytes));
  const EvaluationScope scope(at::kFloat);  // what was held before does not count
  EXPECT_NO_THROW(allocate(kNearly));
  EXPECT_THROW(allocate(kMaxTensorBytes + 1), c10::Error);
}

TEST(ExpressionLimits, LoopsAreCounted) {
  EXPECT_THAT(refusal("x * len([k for k in range(10**12)])"),
              HasSubstr("a range of more than 100000 elements"));
  EXPECT_THAT(refusal("x * sum([len([j for j in range(10**4)]) for k in range(10**4)])"),
              HasSubstr("more than 100000 iterations"));
  EXPECT_EQ(refusal("x * len([k for k in range(10**5)])"), "accepted");
}

TEST(ExpressionLimits, NestingAndLengthAreBounded) {
  const auto repeated = [](const std::string& text, int times) {
    std::string result;
    for (int i = 0; i < times; ++i) result += text;
    return result;
  };
  for (int n : {1000, 100000}) {
    for (const std::string& text :
         {repeated("(", n) + "x" + repeated(")", n), repeated("[", n), repeated("-", n) + "x",
          repeated("not ", n) + "x", "x" + repeated(" + x", n), "x" + repeated(" ** x", n),
          "x" + repeated(".T", n), "x" + repeated("[0]", n), "x" + repeated(" if rank else x", n),
          repeated("torch.sin(", n) + "x", "[" + repeated("x for x in [", n)})
      EXPECT_NE(refusal(text), "accepted") << text.substr(0, 40);
  }
  EXPECT_EQ(refusal("x" + repeated(" + x", 100)), "accepted");
}

// ---- garbage

// Refused or evaluated, and never anything but InvalidExpression.
TEST(ExpressionGarbage, IsRefusedAndNothingElse) {
  std::ifstream file(DISTGRAD_SOURCE_DIR "/src/rank/expression/testdata/python_equality.txt");
  std::vector<std::string> texts;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') texts.push_back(line);
  ASSERT_GT(texts.size(), 300u);
  Scope scope = kScope;
  for (const char* name : {"y", "s", "i", "m"}) scope[name] = NameType::kTensor;
  scope["xs"] = NameType::kTensorList;
  const auto value_of = [](const std::string& name) -> c10::IValue {
    if (name == "rank") return 1;
    if (name == "world_size") return 3;
    if (name == "x") return at::ones({2, 3}, at::kDouble);
    if (name == "i") return at::arange(3);
    if (name == "s") return at::scalar_tensor(2.0, at::kDouble);
    if (name == "m") return at::ones({2, 3}, at::kBool);
    if (name == "xs" || name == "parts")
      return c10::List<at::Tensor>({at::ones({2}), at::ones({2})});
    return at::ones({3}, at::kDouble);
  };
  Mutants mutants(texts, 1);
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::string text =
        round % 2 ? mutants.with_characters_changed() : mutants.with_tokens_changed();
    try {
      const auto compiled = compile_expression(text, scope, DType::kFloat32, NumberResult::kAccept);
      EXPECT_EQ(compiled->names(), names_used(text, scope));
      std::vector<c10::IValue> values;
      for (const std::string& name : compiled->names()) values.push_back(value_of(name));
      compiled->evaluate(std::move(values));
      ++accepted;
    } catch (const InvalidExpression& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << text;
      EXPECT_NE(std::string(error.what()), "") << text;
    } catch (const std::exception& error) {
      ADD_FAILURE() << text << ": " << error.what();
    }
  }
  EXPECT_GT(accepted, 500);
}

}  // namespace
}  // namespace distgrad
