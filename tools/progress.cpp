#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"

namespace zero3d::tools {
namespace {

constexpr int kBarWidth = 30;
constexpr std::int64_t kPlainLines = 20;

std::string duration(double seconds) {
  const std::int64_t total = std::llround(seconds);
  char text[32];
  if (total >= 3600) {
    std::snprintf(text, sizeof text, "%lldh%02lldm", static_cast<long long>(total / 3600),
                  static_cast<long long>(total / 60 % 60));
  } else {
    std::snprintf(text, sizeof text, "%lldm%02llds", static_cast<long long>(total / 60),
                  static_cast<long long>(total % 60));
  }
  return text;
}

std::vector<double> column_means(const std::vector<double>& values, int columns) {
  std::vector<double> means;
  const std::size_t count = std::min<std::size_t>(values.size(), static_cast<std::size_t>(columns));
  for (std::size_t column = 0; column < count; ++column) {
    double sum = 0;
    int finite = 0;
    for (std::size_t i = column * values.size() / count; i < (column + 1) * values.size() / count;
         ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      ++finite;
    }
    means.push_back(finite == 0 ? std::nan("") : sum / finite);
  }
  return means;
}

/// A NaN has a sign, which says nothing.
double without_sign_of_nan(double value) { return std::isnan(value) ? std::nan("") : value; }

/// Bytes of the character that begins at `i`; 0 when none does (RFC 3629: no surrogates, nothing
/// longer than needed).
std::size_t utf8_length(const std::string& text, std::size_t i) {
  const auto at = [&](std::size_t k) {
    return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u;
  };
  const unsigned first = at(i);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xC2 && first < 0xE0   ? 2
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xF0 && first < 0xF5 ? 4
                                                             : 0;
  for (std::size_t k = 1; k < length; ++k) {
    if ((at(i + k) & 0xC0u) != 0x80) return 0;
  }
  const unsigned second = at(i + 1);
  const bool bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
                   (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90);
  return bad ? 0 : length;
}

}  // namespace

Progress::Progress(std::int64_t steps, std::int64_t first)
    : steps_(steps),
      first_(first),
      terminal_(isatty(STDOUT_FILENO) == 1),
      begin_ns_(now_ns()),
      lines_every_(std::max<std::int64_t>(1, (steps - first + 1) / kPlainLines)) {}

void Progress::step(const StepResult& result) {
  const bool last = result.step == steps_;
  if (!terminal_ && result.step != first_ && !last && result.step % lines_every_ != 0) return;
  draw(result);
}

void Progress::draw(const StepResult& result) {
  const double elapsed = static_cast<double>(now_ns() - begin_ns_) * 1e-9;
  const double done = static_cast<double>(result.step) / static_cast<double>(steps_);
  const double done_here =
      static_cast<double>(result.step - first_ + 1) / static_cast<double>(steps_ - first_ + 1);
  const double rate = static_cast<double>(result.tokens) / std::max(result.seconds, 1e-9);
  const std::string tail =
      concat(result.skipped ? " skipped" : "", "  ", format_count(static_cast<std::int64_t>(rate)),
             " tokens/s  ", duration(elapsed), " of ", duration(elapsed / done_here));
  if (terminal_) {
    const auto filled = static_cast<int>(done * kBarWidth);
    std::printf("\r[%s%s] %lld/%lld  loss %.4f  norm %.3f  lr %.2e%s\x1b[K",
                std::string(static_cast<std::size_t>(filled), '#').c_str(),
                std::string(static_cast<std::size_t>(kBarWidth - filled), '.').c_str(),
                static_cast<long long>(result.step), static_cast<long long>(steps_),
                without_sign_of_nan(result.loss), without_sign_of_nan(result.grad_norm), result.lr,
                tail.c_str());
    line_open_ = true;
  } else {
    std::printf("step %lld/%lld  loss %.4f  norm %.3f  lr %.2e%s\n",
                static_cast<long long>(result.step), static_cast<long long>(steps_),
                without_sign_of_nan(result.loss), without_sign_of_nan(result.grad_norm), result.lr,
                tail.c_str());
  }
  std::fflush(stdout);
}

void Progress::evaluation(std::int64_t step, double loss) {
  finish();
  std::printf("step %lld/%lld  evaluation loss %.4f\n", static_cast<long long>(step),
              static_cast<long long>(steps_), without_sign_of_nan(loss));
  std::fflush(stdout);
}

void Progress::finish() {
  if (line_open_) std::printf("\n");
  line_open_ = false;
  std::fflush(stdout);
}

std::string printable(const std::string& bytes) {
  constexpr const char* kUnknown = "\xEF\xBF\xBD";
  std::string text;
  for (std::size_t i = 0; i < bytes.size();) {
    const std::size_t length = utf8_length(bytes, i);
    const bool control = length == 1 &&
                         (static_cast<unsigned char>(bytes[i]) < 0x20 || bytes[i] == 0x7F) &&
                         bytes[i] != '\n' && bytes[i] != '\t';
    text += length == 0 || control ? kUnknown : bytes.substr(i, length);
    i += std::max<std::size_t>(1, length);
  }
  return text;
}

std::string draw_curve(const std::vector<double>& values, int rows, int columns,
                       std::int64_t first) {
  const std::vector<double> means = column_means(values, columns);
  double low = INFINITY;
  double high = -INFINITY;
  for (double mean : means) {
    if (std::isnan(mean)) continue;
    low = std::min(low, mean);
    high = std::max(high, mean);
  }
  if (!(low <= high)) return "";
  const double step = high > low ? (high - low) / (rows - 1) : 1.0;
  std::string chart;
  for (int row = rows - 1; row >= 0; --row) {
    char label[16];
    std::snprintf(label, sizeof label, "%8.3f ", low + step * row);
    chart += label;
    chart += "|";
    for (double mean : means)
      chart += !std::isnan(mean) && static_cast<int>(std::lround((mean - low) / step)) == row ? '*'
                                                                                              : ' ';
    while (chart.back() == ' ') chart.pop_back();
    chart += "\n";
  }
  return chart + "         +" + std::string(means.size(), '-') + "\n          step " +
         std::to_string(first) + " to " +
         std::to_string(first - 1 + static_cast<std::int64_t>(values.size())) + "\n";
}

}  // namespace zero3d::tools
