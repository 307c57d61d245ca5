// Layers of a saved pipeline matched with the blocks of a model.
#include <gtest/gtest.h>

#include "deepspeed_checkpoints.h"
#include "zero3d/formats/pipeline_names.h"

namespace zero3d {
namespace {

using test::expect_has;
using test::message_of;
using test::P;

using Layers = std::vector<std::vector<NamedShape>>;

std::string match_refusal(const Layers& layers, const Layers& blocks) {
  std::vector<std::string> remarks;
  return message_of<Error>([&] { match_layers(layers, blocks, remarks); });
}

TEST(PipelineNames, PairsByNameShapeAndOrder) {
  std::vector<std::string> remarks;
  const Layers blocks = {
      {{"model.embed.weight", {9, 4}}},
      {{"m.0.q.weight", {4, 4}}, {"m.0.k.weight", {4, 4}}, {"m.0.n.weight", {4}}},
      {{"model.norm.weight", {4}}, {"lm_head.weight", {9, 4}}}};
  // Norm and head as layers of their own; projections that only their order tells apart.
  const Layers layers = {{{"0.wte.weight", {9, 4}}},
                         {{"2.x.weight", {4, 4}}, {"2.y.weight", {4, 4}}, {"2.s.weight", {4}}},
                         {{"3.weight", {4}}},
                         {{"4.head.weight", {9, 4}}}};
  const auto names = match_layers(layers, blocks, remarks);
  EXPECT_EQ(names[1], (std::vector<std::string>{"m.0.q.weight", "m.0.k.weight", "m.0.n.weight"}));
  EXPECT_EQ(names[2][0], "model.norm.weight");
  EXPECT_EQ(names[3][0], "lm_head.weight");
  EXPECT_EQ(remarks,
            (std::vector<std::string>{"2.x.weight is m.0.q.weight", "2.y.weight is m.0.k.weight"}));
  // A name that agrees goes before the order.
  remarks.clear();
  const auto named = match_layers({{{"1.k.weight", {4, 4}}, {"1.q.weight", {4, 4}}}},
                                  {{{"m.0.q.weight", {4, 4}}, {"m.0.k.weight", {4, 4}}}}, remarks);
  EXPECT_EQ(named[0], (std::vector<std::string>{"m.0.k.weight", "m.0.q.weight"}));
  EXPECT_TRUE(remarks.empty());
}

TEST(PipelineNames, NamesBothSidesOfWhatIsAmbiguous) {
  const Layers blocks = {{{"a.weight", {4}}, {"b.weight", {4}}}};
  const std::string text = match_refusal({{{"1.c.weight", {4}}}}, blocks);
  expect_has(text, "1.c.weight [4]");
  expect_has(text, "b.weight [4]");
  expect_has(text, "--map OLD=NEW");
  expect_has(match_refusal({{{"1.c.weight", {5}}}}, blocks), "cannot tell");
  expect_has(match_refusal({}, blocks), "the model still has");
  expect_has(match_refusal({{{"1.a.weight", {4}}, {"1.b.weight", {4}}}, {{"2.c", {1}}}}, blocks),
             "left over");
}

}  // namespace
}  // namespace zero3d
