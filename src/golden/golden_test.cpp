// Golden files as text, what of a stored one is kept, and what a run is compared with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/sha256.h"
#include "golden/canonical.h"
#include "golden/difference.h"
#include "golden/golden_file.h"
#include "golden/number.h"
#include "golden/record.h"
#include "golden/store.h"

namespace distgrad::golden {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// FIPS 180-4's examples, and lengths on both sides of where the padding takes a block of its own.
TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, cases 2 and 6: a short key, and one longer than a block.
TEST(HmacSha256, IsThatOfTheStandard) {
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_sha256(std::string(131, '\xaa'),
                        "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_TRUE(are_same_digests("ab", "ab"));
  EXPECT_FALSE(are_same_digests("ab", "ac"));
  EXPECT_FALSE(are_same_digests("ab", "abc"));
}

TEST(Canonical, IsTheSameForWhatMeansTheSame) {
  EXPECT_EQ(canonical_form(
                R"({ "$schema": "s", "note": "x", "loss": "y", "tolerance": 0.0, "timeout_s": 3,
                                "subjects": { "reference": "match" } })"),
            canonical_form(R"({"tolerance":0,"loss":"\u0079"})"));
  EXPECT_EQ(canonical_form(R"({ "a": 100e-2, "b": [1, 2.50] })"), R"({"a":1.0,"b":[1.0,2.5]})");
}

TEST(Canonical, DiffersWhereTheProgramDoes) {
  const std::string mesh = canonical_form(R"({ "mesh": { "tp": 2, "dp": 2 } })");
  EXPECT_NE(mesh, canonical_form(R"({ "mesh": { "dp": 2, "tp": 2 } })"));
  EXPECT_NE(canonical_form(R"({ "seed": 9007199254740993 })"),
            canonical_form(R"({ "seed": 9007199254740992 })"));
  // A note that is an input's name is no note.
  EXPECT_NE(canonical_form(R"({ "inputs": { "note": 1 } })"),
            canonical_form(R"({ "inputs": { "note": 2 } })"));
}

TEST(Number, ReadsBackAsAFloat) {
  EXPECT_EQ(number_text(40), "40.0");
  EXPECT_EQ(number_text(-0.0), "0.0");
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(1e22), "1e+22");
  EXPECT_EQ(number_text(-NAN), "nan");
}

TEST(Number, ABoundIsRoundedUpAndLittle) {
  EXPECT_EQ(rounded_up(0), 0);
  for (const double bound : {5e-324, 1.0049e-16, 2.220446e-16, 9.999e-8, 1e300}) {
    EXPECT_GE(rounded_up(bound), bound);
    if (bound > 1e-300) {
      EXPECT_GE(rounded_up(bound) * 0.71, bound) << "what is kept of an older bound still holds";
    }
    EXPECT_LE(rounded_up(bound), bound * 1.6 + 5e-324);
  }
}

// One local input on two ranks, shape [2, 2], and one replicated of no elements.
GoldenFile sample(double bound) {
  CaseRecord c;
  c.objective = "sum";
  c.world_size = 2;
  c.losses = {25, 26};
  c.loss_bounds = {0, 0};
  const Array first({2, 2}, {1, 2, 3, 4}), second({2, 2}, {5, 6, 7, 0.1});
  const Array bounds({2, 2}, {bound, bound, bound, bound});
  c.gradients.push_back({"x", "local", {first, second}, {bounds, bounds}, {}});
  c.gradients.push_back({"w", "replicate", {Array({0, 3}, {})}, {Array({0, 3}, {})}, {}});
  return {"abc", {c}};
}

GoldenFile with_element(GoldenFile file, double value) {
  file.cases[0].gradients[0].parts[1] = Array({2, 2}, {5, 6, 7, value});
  return file;
}

TEST(GoldenText, HasARowOfATensorALine) {
  EXPECT_EQ(text_of(sample(0)), R"({
  "format": 1,
  "scenario_sha256": "abc",
  "cases": [
    {
      "objective": "sum",
      "world_size": 2,
      "dtype": "float64",
      "exact": true,
      "losses": [25.0, 26.0],
      "loss_bound": 0.0,
      "gradients": {
        "x": {
          "layout": "local",
          "by_rank": [
            [
              [1.0, 2.0],
              [3.0, 4.0]
            ],
            [
              [5.0, 6.0],
              [7.0, 0.1]
            ]
          ],
          "bound": 0.0
        },
        "w": {
          "layout": "replicate",
          "full": {
            "shape": [0, 3]
          },
          "bound": 0.0
        }
      }
    }
  ]
}
)");
}

TEST(GoldenText, ReadsBackAsItWasWritten) {
  GoldenFile file = sample(1e-15);
  file.cases[0].losses[0] = -std::numeric_limits<double>::infinity();
  file.cases[0].loss_bounds[1] = 3;
  file.cases.push_back(file.cases[0]);
  file.cases[1].world_size = 3;
  file.cases[1].gradients.clear();
  file.cases[1].why = "a branch is undecided";
  const std::string text = text_of(file);
  EXPECT_EQ(text_of(parse_golden(text, "g.json")), text);
}

TEST(GoldenText, OfALargeTensorIsASummary) {
  GoldenFile file = sample(0);
  GradientRecord& g = file.cases[0].gradients[0];
  g.summary = summary_of(g.parts, 0);
  EXPECT_THAT(g.summary->first, ElementsAre(1, 2, 3, 4, 5, 6, 7, 0.1));
  EXPECT_EQ(g.summary->l1, 28.1);
  // struct.pack("<8d", 1, 2, 3, 4, 5, 6, 7, 0.1), hashed in Python.
  EXPECT_EQ(g.summary->sha256, "ba3c0acf341c9e5b0296305f672197581ede6bb732cd36d41c4b32131b6f85c5");
  EXPECT_EQ(summary_of(g.parts, 1e-9).sha256, "");
  const std::string text = text_of(file);
  EXPECT_THAT(text, HasSubstr("\"norms\""));
  EXPECT_EQ(text_of(parse_golden(text, "g.json")), text);
}

TEST(GoldenText, SaysWhatItCannotRead) {
  const auto why = [](const char* text) {
    try {
      parse_golden(text, "g.json");
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(why("{"),
            "g.json:1:2: the file ends before the object that begins in line 1 is closed");
  EXPECT_THAT(why(std::string(1'000'000, '[').c_str()), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(why("[]"), HasSubstr("not a golden file of format 1"));
  EXPECT_THAT(why(R"({"format":2,"scenario_sha256":"","cases":[]})"), HasSubstr("format 1"));
  EXPECT_THAT(why("{\"format\":1,\"scenario_sha256\":\"\",\n\"cases\":[{}]}"),
              HasSubstr("g.json:2:10: cannot be read as a golden file: no \"objective\""));
  EXPECT_THAT(why(R"({"format":1,"scenario_sha256":4,"cases":[]})"), HasSubstr("not a text"));
  EXPECT_THAT(why(R"({"format":1,"format":1})"), HasSubstr("duplicate key \"format\""));
}

TEST(Kept, AnExactValueMustBeTheSame) {
  Differences differences;
  const GoldenFile stored = with_element(sample(0), std::nextafter(0.1, 1));
  EXPECT_EQ(text_of(kept(stored, sample(0), differences)), text_of(sample(0)));
  ASSERT_EQ(differences.values.size(), 1u);
  const ValueDifference& d = differences.values[0];
  EXPECT_EQ(d.tensor, "x");
  EXPECT_EQ(d.rank, 1);
  EXPECT_THAT(d.index, ElementsAre(1, 1));
  EXPECT_EQ(ulps_between(d.stored, d.now), 1u);
}

TEST(Kept, AStoredValueWithinItsBoundStays) {
  Differences differences;
  const GoldenFile stored = with_element(sample(1e-15), std::nextafter(0.1, 1));
  EXPECT_EQ(text_of(kept(stored, sample(1e-15), differences)), text_of(stored));
  EXPECT_TRUE(differences.empty());
}

// A bound of bfloat16 lets a run be far off, not the truth, which is float64's.
TEST(Kept, ANarrowDtypeDoesNotLetTheTruthDrift) {
  Differences differences;
  GoldenFile now = sample(1e-3);
  now.cases[0].dtype = DType::kBFloat16;
  GoldenFile stored = with_element(now, 0.1001);
  kept(stored, now, differences);
  EXPECT_EQ(differences.values.size(), 1u);
}

TEST(Kept, OnlyWhatIsOffIsReplaced) {
  Differences differences;
  GoldenFile stored = with_element(sample(1e-15), 0.2);
  stored.cases[0].gradients[0].parts[0] = Array({2, 2}, {std::nextafter(1.0, 2), 2, 3, 4});
  const GoldenFile result = kept(stored, sample(1e-15), differences);
  EXPECT_EQ(differences.values.size(), 1u);
  EXPECT_EQ(result.cases[0].gradients[0].parts[0][0], std::nextafter(1.0, 2));
  EXPECT_EQ(result.cases[0].gradients[0].parts[1][3], 0.1);
}

TEST(Kept, ABoundThatAnotherTorchDerivesSlightlyOtherwiseStays) {
  Differences differences;
  EXPECT_EQ(text_of(kept(sample(2e-15), sample(1e-15), differences)), text_of(sample(2e-15)));
  EXPECT_TRUE(differences.empty());
  kept(sample(1e-12), sample(1e-15), differences);
  EXPECT_THAT(differences.notes, ElementsAre(HasSubstr("the scenario is the same"),
                                             HasSubstr("8 bounds of x no longer hold")));
  differences = {};
  kept(sample(1e-15), sample(2e-15), differences);
  EXPECT_FALSE(differences.empty());
}

TEST(Kept, NamesEveryOtherDifference) {
  Differences differences;
  GoldenFile stored = sample(0);
  stored.scenario_sha256 = "old";
  stored.cases[0].world_size = 5;
  kept(stored, sample(0), differences);
  EXPECT_THAT(differences.notes,
              ElementsAre(HasSubstr("SHA-256 no longer fits"), HasSubstr("not in the golden file"),
                          HasSubstr("world_size=5,dtype=float64 is not in the scenario")));
}

TEST(Ulps, CountAcrossZero) {
  EXPECT_EQ(ulps_between(1, 1), 0u);
  EXPECT_EQ(ulps_between(0.0, -0.0), 0u);
  EXPECT_EQ(ulps_between(-5e-324, 5e-324), 2u);
  EXPECT_EQ(ulps_between(1, NAN), std::nullopt);
}

Simulation simulation_like(const GoldenFile& file) {
  Simulation s;
  const CaseRecord& c = file.cases[0];
  s.losses = c.losses;
  s.gradients.resize(1);
  for (const GradientRecord& g : c.gradients) {
    s.gradients[0].push_back({g.input, {g.parts.begin(), g.parts.end()}});
    s.bounds.push_back({g.input, {g.bounds.begin(), g.bounds.end()}});
  }
  return s;
}

TEST(PutInPlace, AStoredTruthThatIsAnotherIsTold) {
  Simulation s = simulation_like(sample(1e-15));
  EXPECT_THAT(put_in_place(with_element(sample(1e-15), 0.2).cases[0], {}, s),
              HasSubstr("of the golden file has 0.2 where 0.1 is right now"));
}

TEST(PutInPlace, AStoredBoundThatLetsMorePassIsTold) {
  Simulation s = simulation_like(sample(1e-15));
  EXPECT_THAT(put_in_place(sample(1e-3).cases[0], {}, s),
              HasSubstr("has the bound 0.001 where 1e-15 is right now: the file was edited"));
  s = simulation_like(sample(0));
  EXPECT_THAT(put_in_place(sample(1e-15).cases[0], {}, s), HasSubstr("where 0 is right now"));
}

TEST(PutInPlace, AStoredLossThatIsAnotherIsTold) {
  GoldenFile file = sample(1e-15);
  Simulation s = simulation_like(file);
  file.cases[0].losses[1] += 1;
  EXPECT_THAT(put_in_place(file.cases[0], {}, s),
              HasSubstr("rank 1's loss of the golden file has"));
}

// A right run lies within the bound of this torch's truth, of which the stored one is a little off.
TEST(PutInPlace, TheBoundCoversWhatMachinesDifferBy) {
  Simulation s = simulation_like(sample(1e-15));
  const double stored = std::nextafter(0.1, 1);
  EXPECT_EQ(put_in_place(with_element(sample(1e-15), stored).cases[0], {}, s), "");
  EXPECT_EQ((*s.gradients[0][0].parts[1])[3], stored);
  EXPECT_EQ((*s.bounds[0].parts[1])[3], 1e-15 + (stored - 0.1));
}

TEST(PutInPlace, RefusesWhatIsNotShapedAsTheProgram) {
  GoldenFile other = sample(0);
  other.cases[0].gradients[0].parts.pop_back();
  Simulation s = simulation_like(sample(0));
  EXPECT_THAT(put_in_place(other.cases[0], {}, s), HasSubstr("not shaped"));
}

TEST(PutInPlace, ASummaryThatDoesNotFitIsTold) {
  GoldenFile large = sample(0);
  GradientRecord& g = large.cases[0].gradients[0];
  Simulation s = simulation_like(large);
  g.summary = summary_of(g.parts, 0);
  EXPECT_EQ(put_in_place(large.cases[0], {}, s), "");
  g.summary->sha256[0] ^= 1;
  EXPECT_THAT(put_in_place(large.cases[0], {}, s), HasSubstr("no longer fits"));
}

TEST(Store, AGoldenFileIsNamedAsItsScenario) {
  EXPECT_EQ(Store("golden").path_of("scenarios/a/b.json"), "golden/scenarios/a/b.json");
  EXPECT_EQ(Store("golden/").path_of("./scenarios//a.json"), "golden/scenarios/a.json");
  EXPECT_EQ(Store("/elsewhere/golden").path_of("/elsewhere/s/a.json"),
            "/elsewhere/golden/s/a.json");
  EXPECT_THROW(Store("golden").path_of("/elsewhere/s/a.json"), UserError);
}

}  // namespace
}  // namespace distgrad::golden
