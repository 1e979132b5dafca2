#include "model/subject_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(SubjectText, PartsByKind) {
  EXPECT_THAT(parts_by_kind("torch_nn"), IsEmpty());
  EXPECT_THAT(parts_by_kind("python:a=b.py:f"), IsEmpty()) << "the '=' is the path's";
  EXPECT_THAT(parts_by_kind("all_gather=python:x+y=1.py:G.apply+all_reduce=in_place"),
              ElementsAre(Pair(CollectiveKind::kAllGather, "python:x+y=1.py:G.apply"),
                          Pair(CollectiveKind::kAllReduce, "in_place")));
}

TEST(SubjectText, OthersAreLeftToTheReference) {
  EXPECT_EQ(subject_for("all_gather=simclr", CollectiveKind::kAllGather), "simclr");
  EXPECT_EQ(subject_for("all_gather=simclr", CollectiveKind::kAllReduce), "reference");
  EXPECT_EQ(subject_for("simclr", CollectiveKind::kAllReduce), "simclr");
}

TEST(SubjectText, Modes) {
  EXPECT_EQ(split_mode("python:f.py:g@checkpoint"), std::pair(std::string_view("python:f.py:g"), std::optional<std::string_view>("checkpoint")));
  EXPECT_EQ(split_mode("python:m@").second, "");
  EXPECT_EQ(split_mode("python:a@b/f.py:g").second, std::nullopt) << "the '@' is the path's";
  EXPECT_EQ(split_mode("python:a@b.py:g").second, std::nullopt);
  EXPECT_EQ(split_mode("python:a@b.py:g@async").second, "async");
  EXPECT_EQ(subject_in_mode("python:m", CollectiveKind::kAllReduce, "async"), "python:m@async");
  EXPECT_EQ(subject_in_mode("all_gather=python:m:f+all_reduce=in_place", CollectiveKind::kAllGather, "compile"),
            "all_gather=python:m:f@compile+all_reduce=in_place");
  EXPECT_TRUE(is_python_subject("python:m@checkpoint"));
  EXPECT_TRUE(is_reference("python:reference@checkpoint")) << "its losses are weighted in every mode";
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
