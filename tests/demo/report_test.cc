// Figures from samples: medians, ratios to the best gRPC mode of the same path, and
// nothing for what was not verified.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tools/demo_job/report.h"

namespace sluice::tools::demo {
namespace {

Series series(Mode mode, Route route, std::vector<double> pulls) {
  Series made{.mode = mode, .route = route};
  for (double pull : pulls)
    made.samples.push_back(
        {.step_seconds = 2 * pull, .pull_seconds = pull, .cpu_seconds = 1, .copied_bytes = 1000});
  return made;
}

JobOptions tiny(int workers) {
  JobOptions options;
  options.model = "tiny";
  options.workers = workers;
  return options;
}

TEST_CASE("a ratio is the best gRPC median of the same path over the own median") {
  const std::vector<Series> all = {series(Mode::kZerocopy, Route::kShm, {1, 9, 2}),
                                   series(Mode::kGrpcUnary, Route::kShm, {20, 20, 20}),
                                   series(Mode::kGrpcStream, Route::kShm, {6, 4, 5}),
                                   series(Mode::kZerocopy, Route::kTcp, {1}),
                                   series(Mode::kGrpcStream, Route::kTcp, {3})};
  const auto figures = figures_of(all, tiny(1));
  CHECK(figures[0]->pull_seconds.median == 2);
  CHECK(figures[0]->pull_seconds.min == 1);
  CHECK(figures[0]->pull_seconds.max == 9);
  CHECK(*figures[0]->ratio_to_grpc == Approx(2.5));
  CHECK(*figures[0]->ratio_to_grpc_unary == Approx(10));
  CHECK(*figures[1]->ratio_to_grpc == Approx(0.25));
  CHECK(*figures[3]->ratio_to_grpc == Approx(3));
  CHECK_FALSE(figures[3]->ratio_to_grpc_unary.has_value());
}

TEST_CASE("an even number of samples has the mean of the middle two as its median") {
  const auto figures = figures_of({series(Mode::kZerocopy, Route::kShm, {4, 1, 3, 2})}, tiny(1));
  CHECK(figures[0]->pull_seconds.median == 2.5);
}

TEST_CASE("bytes, copies and CPU are counted for weights and gradients of all workers") {
  const auto figures = figures_of({series(Mode::kOnecopy, Route::kShm, {1, 1})}, tiny(3));
  const double bytes = 2 * 3 * 138375 * 4.0;
  CHECK(static_cast<double>(figures[0]->bytes_per_step) == bytes);
  CHECK(figures[0]->bytes_per_second == Approx(bytes / 2));
  CHECK(figures[0]->pull_bytes_per_second == Approx(bytes / 2));
  CHECK(figures[0]->cpu_seconds_per_gb == Approx(1 / (bytes / 1e9)));
  CHECK(*figures[0]->copied_bytes_per_byte == Approx(1000 / bytes));
}

TEST_CASE("what is not verified has no figures and sets no standard") {
  std::vector<Series> all = {series(Mode::kZerocopy, Route::kShm, {1}),
                             series(Mode::kGrpcStream, Route::kShm, {2}),
                             series(Mode::kGrpcUnary, Route::kShm, {8})};
  all[1].corruption = "step 1: weights";
  const auto figures = figures_of(all, tiny(1));
  CHECK_FALSE(figures[1].has_value());
  CHECK(*figures[0]->ratio_to_grpc == Approx(8));
  const std::string text = table(all, figures);
  CHECK(text.find("CORRUPT: step 1: weights") != std::string::npos);
  const nlohmann::json document = nlohmann::json::parse(json(all, figures, tiny(1), 1));
  CHECK(document.at("results")[1].at("verified") == false);
  CHECK(document.at("results")[1].at("bytes_per_second").is_null());
}

TEST_CASE("a path that this machine has not is told with the reason") {
  const std::vector<Series> all = {series(Mode::kZerocopy, Route::kShm, {1})};
  const auto figures = figures_of(all, tiny(1));
  const std::vector<Missing> missing = {{.route = Route::kRdma, .reason = "no device; get one"}};
  CHECK(table(all, figures, missing).find("rdma not available: no device; get one\n") !=
        std::string::npos);
  const nlohmann::json document = nlohmann::json::parse(json(all, figures, tiny(1), 1, missing));
  REQUIRE(document.at("unavailable").size() == 1);
  CHECK(document.at("unavailable")[0].at("path") == "rdma");
  CHECK(document.at("unavailable")[0].at("reason") == "no device; get one");
  CHECK(document.at("results").size() == 1);
}

TEST_CASE("gRPC's copies are unknown, not zero") {
  const std::vector<Series> all = {series(Mode::kGrpcStream, Route::kTcp, {1})};
  const auto figures = figures_of(all, tiny(1));
  CHECK_FALSE(figures[0]->copied_bytes_per_byte.has_value());
  CHECK(table(all, figures).find("unknown") != std::string::npos);
}

}  // namespace
}  // namespace sluice::tools::demo
