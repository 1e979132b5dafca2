// What other parameters show of one that tells little by itself, and what clipping leaves.
#include "dumps/second_look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dumps/compare_dumps.h"
#include "dumps/sample_dumps.h"

namespace distgrad::dumps {
namespace {

using sample::kSize;
using sample::numbers;
using sample::times;
using testing::Contains;
using testing::HasSubstr;

constexpr int kRanks = 3;

// The reference's, by name; the same for the same seed.
std::vector<float> truth_of(const std::string& name) {
  return numbers(name == "scale" ? 1 : kSize, static_cast<unsigned>(name.size()));
}

Dump reference_of_names(const std::vector<std::string>& names) {
  Dump dump;
  dump.path = "reference";
  RankDump& whole = dump.ranks.emplace_back();
  for (const std::string& name : names)
    whole.gradients[name].tensor = sample::vector(truth_of(name));
  return dump;
}

// On every rank; `made` of the name and the rank.
template <class Made>
Dump observed_of(const std::vector<std::string>& names, const Made& made) {
  Dump dump;
  dump.path = "observed";
  for (int r = 0; r < kRanks; ++r) {
    RankDump& rank = dump.ranks.emplace_back();
    rank.rank = r;
    for (const std::string& name : names)
      rank.gradients[name].tensor = sample::vector(made(name, r));
  }
  return dump;
}

template <class Made>
std::map<std::string, ParameterResult> compared(const std::vector<std::string>& names,
                                                const Made& made) {
  std::map<std::string, ParameterResult> found;
  for (ParameterResult& r :
       compare_dumps(reference_of_names(names), observed_of(names, made), {}).parameters)
    found[r.name] = std::move(r);
  return found;
}

// A third of `values` on each rank, unlike the others' in every element.
std::vector<float> share(const std::vector<float>& values, int rank) {
  std::vector<float> part = values;
  for (std::size_t i = 0; i < part.size(); ++i)
    part[i] *= (static_cast<int>(i) + rank) % kRanks == 0 ? 0.5f : 0.25f;
  return part;
}

TEST(SecondLook, ASingleNumberHasTheFactorThatOthersShow) {
  const auto scaled = [](const std::string& name, int) { return times(truth_of(name), 0.731f); };
  const auto found = compared({"a", "bb", "scale"}, scaled);
  EXPECT_EQ(found.at("scale").explanation, Explanation::kScaled) << found.at("scale").headline;
  EXPECT_THAT(found.at("scale").headline, HasSubstr("0.731 times the reference"));
  EXPECT_EQ(compared({"scale"}, scaled).at("scale").explanation, Explanation::kUnexplained);
}

TEST(SecondLook, ASingleNumberWithAnotherFactorStaysUnexplained) {
  const auto found = compared({"a", "bb", "scale"}, [](const std::string& name, int) {
    return times(truth_of(name), name == "scale" ? 0.74f : 0.731f);
  });
  EXPECT_EQ(found.at("scale").explanation, Explanation::kUnexplained);
}

TEST(SecondLook, TheCommonFactorIsDividedOut) {
  const auto found = compared({"a", "bb", "ccc", "dddd"}, [](const std::string& name, int rank) {
    const std::vector<float> clipped = times(truth_of(name), 0.731f);
    if (name == "ccc") return times(clipped, 3);
    return name == "dddd" ? share(clipped, rank) : clipped;
  });
  EXPECT_THAT(found.at("a").headline, HasSubstr("0.731 times the reference"));
  EXPECT_EQ(found.at("ccc").explanation, Explanation::kScaled);
  EXPECT_THAT(found.at("ccc").headline,
              HasSubstr("3 times the reference (3 = the number of ranks) on every rank, beside the "
                        "0.731 that other gradients are multiplied by"));
  EXPECT_NEAR(*found.at("ccc").factor, 3 * 0.731, 1e-5);
  EXPECT_EQ(found.at("dddd").explanation, Explanation::kSum) << found.at("dddd").headline;
  EXPECT_THAT(found.at("dddd").headline, HasSubstr("needs a sum over ranks 0-2, beside"));
}

TEST(SecondLook, AFactorOfOneParameterIsNoCommonOne) {
  const auto found = compared({"a", "bb", "ccc", "dddd"}, [](const std::string& name, int) {
    return times(truth_of(name), name == "a" ? 0.731f : name == "bb" ? 3 * 0.731f : 1.0f);
  });
  EXPECT_THAT(found.at("bb").headline, HasSubstr("2.19 times the reference"));
  EXPECT_EQ(found.at("ccc").explanation, Explanation::kRight);
}

// Pieces of two parameters, each rank's multiplied so that its own have that norm.
std::vector<std::string> notes_of_clipped(double norm_of_first, double norm_of_others) {
  const std::vector<std::string> names{"a", "bb"};
  double squares = 0;
  for (const std::string& name : names)
    for (const float v : truth_of(name)) squares += double{v} * v;
  Dump dump = observed_of(names, [&](const std::string& name, int rank) {
    const std::vector<float> whole = truth_of(name);
    const auto begin = whole.begin() + rank * static_cast<std::ptrdiff_t>(kSize) / kRanks;
    return std::vector<float>(begin, begin + kSize / kRanks);
  });
  for (RankDump& rank : dump.ranks) {
    double own = 0;
    for (const std::string& name : names)
      own += sum_of_squares(whole_stream(*rank.gradients[name].tensor));
    const double norm = rank.rank == 0 ? norm_of_first : norm_of_others;
    for (const std::string& name : names) {
      std::vector<double> values(kSize / kRanks);
      whole_stream(*rank.gradients[name].tensor).read(0, kSize / kRanks, values.data());
      std::vector<float> clipped;
      for (const double v : values)
        clipped.push_back(static_cast<float>(v * norm * std::sqrt(squares / own)));
      rank.gradients[name].tensor = sample::vector(clipped);
    }
  }
  return compare_dumps(reference_of_names(names), dump, {}).notes;
}

TEST(Clipping, ByTheNormOfEachRanksOwnPiecesIsTold) {
  const auto by_own = Contains(HasSubstr("each rank clips by the norm of its own"));
  EXPECT_THAT(notes_of_clipped(1, 1), by_own);
  EXPECT_THAT(notes_of_clipped(0.9, 1), testing::Not(by_own));
}

// Three stages of whole parameters, each multiplied by a factor of its own.
TEST(Clipping, ByTheNormOfEachStagesOwnIsTold) {
  const std::vector<std::string> names{"a", "bb", "ccc"};
  const auto squares_of = [](const std::string& name) {
    return sum_of_squares(whole_stream(sample::vector(truth_of(name))));
  };
  double squares = 0;
  for (const std::string& name : names) squares += squares_of(name);
  const auto notes_of = [&](double of_last) {
    Dump dump = observed_of({}, [](const std::string&, int) { return std::vector<float>{}; });
    for (std::size_t r = 0; r < names.size(); ++r) {
      const double factor = std::sqrt(squares / squares_of(names[r])) * (r == 2 ? of_last : 1);
      dump.ranks[r].gradients[names[r]].tensor =
          sample::vector(times(truth_of(names[r]), static_cast<float>(factor)));
    }
    return compare_dumps(reference_of_names(names), dump, {}).notes;
  };
  const auto by_own = Contains(HasSubstr("each rank clips by the norm of its own"));
  EXPECT_THAT(notes_of(1), by_own);
  EXPECT_THAT(notes_of(1.05), testing::Not(by_own));
}

// Two parameters in pieces, and "ccc" on each of the three ranks.
TEST(Clipping, ByANormThatCountsCopiesOnceARankIsTold) {
  const std::vector<std::string> names{"a", "bb", "ccc"};
  double squares = 0, with_copies = 0;
  for (const std::string& name : names) {
    const double own = sum_of_squares(whole_stream(sample::vector(truth_of(name))));
    squares += own;
    with_copies += own * (name == "ccc" ? kRanks : 1);
  }
  const auto notes_of = [&](double factor) {
    const Dump dump = observed_of(names, [&](const std::string& name, int rank) {
      const std::vector<float> whole = times(truth_of(name), static_cast<float>(factor));
      const auto begin = whole.begin() + rank * static_cast<std::ptrdiff_t>(kSize) / kRanks;
      return name == "ccc" ? whole : std::vector<float>(begin, begin + kSize / kRanks);
    });
    return compare_dumps(reference_of_names(names), dump, {}).notes;
  };
  const auto with = Contains(HasSubstr("clipping counts copies once a rank"));
  EXPECT_THAT(notes_of(std::sqrt(squares / with_copies)), with);
  EXPECT_THAT(notes_of(std::sqrt(squares / with_copies) * 0.98), testing::Not(with));
  EXPECT_THAT(notes_of(1), testing::Not(with));
}

}  // namespace
}  // namespace distgrad::dumps
