// The last line of defence holds whatever the emitter made.
#include "rank/expression/lowering.h"

#include <ATen/core/jit_type.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rank/expression/allow_list.h"
#include "rank/expression/operators.h"

namespace distgrad {
namespace {

// A graph that calls the operator on nothing, as a wrong emitter might have made it.
EmittedGraph graph_calling(const std::shared_ptr<torch::jit::Operator>& op) {
  EmittedGraph made;
  torch::jit::Node* node = made.graph->insertNode(
      made.graph->create(c10::Symbol::fromQualString(op->schema().name()), 1));
  made.matched.emplace(node, op);
  made.result = node->output();
  return made;
}

TEST(Lowering, RefusesEveryOperatorThatIsNotAllowed) {
  int refused = 0, allowed = 0;
  for (const auto& op : torch::jit::getAllOperators()) {
    const std::string& name = op->schema().name();
    if (name == "prim::TupleUnpack") continue;  // a node of syntax
    try {
      lower(graph_calling(op));
    } catch (const ExpressionError& error) {
      ++refused;
      EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr("is not a pure tensor function"),
                                               testing::HasSubstr("stands where a ")));
      continue;
    }
    ++allowed;
    EXPECT_TRUE(is_pure(*op)) << op->schema();
    EXPECT_FALSE(op->schema().is_mutable()) << op->schema();
    EXPECT_TRUE(name.starts_with("aten::") || name == "prim::dtype") << name;
    for (const char* part :
         {"rand", "save", "load", "file", "seed", "dropout", "print", "bernoulli", "empty"})
      EXPECT_EQ(name.find(part), std::string::npos) << name;
    EXPECT_FALSE(name.ends_with('_') && !name.ends_with("__")) << name;
  }
  EXPECT_GT(refused, 2000);
  EXPECT_GT(allowed, 300);
}

TEST(Lowering, RefusesNodesItDoesNotKnow) {
  for (const char* name :
       {"prim::Print", "prim::fork", "aten::rand", "prim::PythonOp", "prim::RaiseException"}) {
    EmittedGraph made;
    made.result =
        made.graph->insertNode(made.graph->create(c10::Symbol::fromQualString(name), 1))->output();
    EXPECT_THROW(lower(made), ExpressionError) << name;
  }
}

TEST(Lowering, DropsWhatTheResultDoesNotNeed) {
  EmittedGraph made;
  made.graph->insertNode(made.graph->create(c10::Symbol::fromQualString("prim::Print"), 0));
  made.result = made.graph->insertConstant(1);
  EXPECT_TRUE(lower(made).instructions.empty());
}

// A name on the list that no operator of this torch answers to could never be called.
TEST(AllowList, NamesHaveOperators) {
  const std::vector<std::string> ours = {"tensor", "bfloat16", "bool", "double", "float",
                                         "half",   "int",      "long", "short"};
  for (const AllowedGroup& group : allowed_groups())
    for (const AllowedFunction& function : group.functions) {
      const std::string name(function.name);
      if (std::find(ours.begin(), ours.end(), name) != ours.end()) continue;
      const std::string op = name == "ndimension" ? "dim" : name == "nelement" ? "numel" : name;
      EXPECT_TRUE(!(function.places & kFunction) || !pure_overloads("aten::" + op, false).empty())
          << name;
      EXPECT_TRUE(!(function.places & kMethod) || !pure_overloads("aten::" + op, true).empty())
          << name;
      EXPECT_TRUE(!(function.places & kLinalg) ||
                  !pure_overloads("aten::linalg_" + op, false).empty())
          << name;
    }
  for (const FunctionalFunction& function : functional_functions())
    EXPECT_FALSE(pure_overloads("aten::" + std::string(function.operator_name), false).empty())
        << function.name;
}

}  // namespace
}  // namespace distgrad
