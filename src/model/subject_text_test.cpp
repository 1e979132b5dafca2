#include "model/subject_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(SubjectText, PartsByKind) {
  const auto served = [](const SubjectPart& part) { return std::pair(part.serves, part.text); };
  const auto texts = [&](std::string_view subject) {
    std::vector<std::pair<std::optional<CollectiveKind>, std::string>> found;
    std::ranges::transform(parts_of(subject), std::back_inserter(found), served);
    return found;
  };
  EXPECT_THAT(texts("torch_nn"), ElementsAre(Pair(std::nullopt, "torch_nn")));
  EXPECT_THAT(texts("python:a=b.py:f"), ElementsAre(Pair(std::nullopt, "python:a=b.py:f")))
      << "the '=' is the path's";
  EXPECT_THAT(texts("all_gather=python:x+y=1.py:G.apply+all_reduce=in_place"),
              ElementsAre(Pair(CollectiveKind::kAllGather, "python:x+y=1.py:G.apply"),
                          Pair(CollectiveKind::kAllReduce, "in_place")));
  EXPECT_THAT(texts("copy=python:m:f(x+all_reduce, '+all_gather=')+all_reduce=python:m:g(x)"),
              ElementsAre(Pair(CollectiveKind::kCopy, "python:m:f(x+all_reduce, '+all_gather=')"),
                          Pair(CollectiveKind::kAllReduce, "python:m:g(x)")));
  EXPECT_TRUE(has_parts("all_gather=simclr"));
  EXPECT_FALSE(has_parts("simclr"));
}

TEST(SubjectText, PlaceNameAndMode) {
  using enum SubjectPart::Code;
  struct Row {
    const char* text;
    SubjectPart::Code code;
    const char *place, *name;
    std::optional<std::string> mode;
  };
  const Row rows[] = {
      {"python:f.py:G.apply", kPython, "f.py", "G.apply", {}},
      {"python:f.py", kPython, "f.py", "", {}},
      {"python:C:/a.py:g@async", kPython, "C:/a.py", "g", "async"},
      {"python:a.b:g", kPython, "a.b", "g", {}},
      {"python:a.b@compile", kPython, "a.b", "", "compile"},
      {"python:m@", kPython, "m", "", ""},
      {"python:a@b/f.py:g", kPython, "a@b/f.py", "g", {}},
      {"python:a@b.py:g@async", kPython, "a@b.py", "g", "async"},
      {"python:f.py:", kPython, "f.py:", "", {}},
      {"python::g", kPython, "", "g", {}},
      {"python:m:G.apply(x, 'a@async', {1: 2})[0:1]@async", kPython, "m",
       "G.apply(x, 'a@async', {1: 2})[0:1]", "async"},
      {"python:a(b.py:f(x @ w)", kPython, "a(b.py", "f(x @ w)", {}},
      {"python:m:f('a.py:b')", kPython, "m", "f('a.py:b')", {}},
      {"library:a:b.so:ns::op", kLibrary, "a:b.so", "ns::op", {}},
      {"library:b.so:ns", kLibrary, "b.so", "ns", {}},
      {"library:b.so::op", kLibrary, "b.so::op", "", {}},
      {"simclr", kNone, "simclr", "", {}},
      {"simclr@async", kNone, "simclr@async", "", {}},
  };
  for (const Row& row : rows) {
    const SubjectPart part = read_part(row.text);
    EXPECT_EQ(part.code, row.code) << row.text;
    EXPECT_EQ(part.place, row.place) << row.text;
    EXPECT_EQ(part.name, row.name) << row.text;
    EXPECT_EQ(part.mode, row.mode) << row.text;
    EXPECT_EQ(part.text, row.text);
  }
}

TEST(SubjectText, CallsAreOverwritten) {
  const std::pair<const char*, const char*> rows[] = {
      {"python:m:f(x)[0].wait(1)@async", "python:m:f______.wait___@async"},
      {"copy=python:m:f({'(': \"\\\")\"}, x)+a", "copy=python:m:f_________________+a"},
      {"f.json:subject=python:m:f(a,b),dtype=x", "f.json:subject=python:m:f_____,dtype=x"},
      {"python:m:f(x", "python:m:f__"},  // Python says what is wrong with it
      {"python:a (old)/f.py:g", "python:a (old)/f.py:g"},
      {"run:1(a/f.json:subject=python:m:f", "run:1(a/f.json:subject=python:m:f"},
      {"library:a.so:ns::op(", "library:a.so:ns::op("},
  };
  for (const auto& [text, plain] : rows) EXPECT_EQ(without_calls(text), plain);
  EXPECT_EQ(name_in("a/f.py:G.apply"), "G.apply");
  EXPECT_EQ(name_in("m:f({1: 2}, x)"), "f({1: 2}, x)");
  EXPECT_EQ(name_in("simclr"), "simclr");
}

TEST(SubjectText, OthersAreLeftToTheReference) {
  EXPECT_EQ(subject_for("all_gather=simclr", CollectiveKind::kAllGather), "simclr");
  EXPECT_EQ(subject_for("all_gather=simclr", CollectiveKind::kAllReduce), "reference");
  EXPECT_EQ(subject_for("simclr", CollectiveKind::kAllReduce), "simclr");
}

TEST(SubjectText, Modes) {
  EXPECT_EQ(subject_in_mode("python:m", CollectiveKind::kAllReduce, "async"), "python:m@async");
  EXPECT_EQ(subject_in_mode("all_gather=python:m:f+all_reduce=in_place", CollectiveKind::kAllGather,
                            "compile"),
            "all_gather=python:m:f@compile+all_reduce=in_place");
  EXPECT_TRUE(is_python_subject("python:m@checkpoint"));
  EXPECT_TRUE(is_reference("python:reference@checkpoint"))
      << "its losses are weighted in every mode";
}

std::string text_of(const Mutation& m) {
  return m.step + " " + std::to_string(static_cast<int>(m.kind)) + " " + m.name + " " +
         std::to_string(m.number);
}

TEST(SubjectText, Mutants) {
  using enum Mutation::Kind;
  const auto text = [](const char* step, Mutation::Kind kind, const char* name,
                       std::uint64_t number) {
    return text_of({step, kind, name, number});
  };
  std::vector<std::string> got;
  for (const Mutation& m : mutations_of(
           "mutant:y=next_slice+z=without:12+a=root:0+b=group:tp+c=order:world_root+d=stale:y+"
           "e=linear:18446744073709551615"))
    got.push_back(text_of(m));
  EXPECT_THAT(got, ElementsAre(text("y", kRule, "next_slice", 0), text("z", kWithout, "", 12),
                               text("a", kRoot, "", 0), text("b", kGroup, "tp", 0),
                               text("c", kOrder, "world_root", 0), text("d", kStale, "y", 0),
                               text("e", kLinear, "", ~std::uint64_t{0})));
  EXPECT_TRUE(is_mutant("mutant:y=identity"));
  EXPECT_FALSE(is_mutant("reference"));
  for (const char* bad :
       {"reference", "mutant:", "mutant:y", "mutant:y=", "mutant:=identity",
        "mutant:y=without:", "mutant:y=without:x", "mutant:y=without:-1", "mutant:y=root:1x",
        "mutant:y=group:", "mutant:y=order:backwards", "mutant:y=nonsense:1", "mutant:y=identity+",
        "mutant:y=linear:18446744073709551616"})
    EXPECT_THROW(mutations_of(bad), std::invalid_argument) << bad;
}

TEST(SubjectText, AMutantIsNoSubjectOfAUser) {
  EXPECT_FALSE(has_parts("mutant:all_reduce=identity+all_gather=none")) << "steps, not collectives";
  EXPECT_FALSE(is_reference("mutant:y=identity"));
  EXPECT_FALSE(runs_in_python("mutant:y=identity"));
  EXPECT_FALSE(is_foreign_code("mutant:y=identity"));
}

TEST(SubjectText, WhoseCode) {
  EXPECT_TRUE(is_python_subject("python:m"));
  EXPECT_TRUE(is_python_subject("all_reduce=in_place+all_gather=python:m:f"));
  EXPECT_FALSE(is_python_subject("all_reduce=in_place"));
  EXPECT_FALSE(is_python_subject("library:python:.so:a::b"));
  EXPECT_TRUE(is_foreign_code("broadcast=library:x.so:a::b"));
  EXPECT_FALSE(is_foreign_code("in_place"));
  EXPECT_TRUE(is_reference("python:reference"));
  EXPECT_FALSE(is_reference("all_reduce=reference"));
}

}  // namespace
}  // namespace distgrad
