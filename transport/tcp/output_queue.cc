#include <sluice/tcp/output_queue.h>

#include <algorithm>
#include <cstring>

namespace sluice::tcp {
namespace {

// Pieces and reports that need no allocation.
constexpr size_t kUsualPieces = 64;

}  // namespace

OutputQueue::OutputQueue() : copied_(new std::byte[kCopiedBytes]) {
  pieces_.reserve(kUsualPieces);
  pushed_.reserve(kUsualPieces);
}

bool OutputQueue::append(ConstBytes header, std::span<const ConstBytes> payload, size_t skip) {
  size_t total = header.size();
  for (const ConstBytes& part : payload) total += part.size();
  if (total - skip > room()) return false;
  auto copy_rest = [&](ConstBytes bytes) {
    size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    copy(bytes.subspan(skipped));
  };
  copy_rest(header);
  for (const ConstBytes& part : payload) copy_rest(part);
  return true;
}

bool OutputQueue::push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie,
                       bool lendable) {
  if (pushes_ >= kMaxPushes || borrowed_bytes_ >= kMaxPushedBytes || header.size() > room())
    return false;
  copy(header);
  for (const ConstBytes& part : payload) {
    if (part.empty()) continue;
    pieces_.push_back({part.data(), part.size(), cookie, true, false, lendable, nullptr});
    borrowed_bytes_ += part.size();
  }
  if (!pieces_.empty() && pieces_.back().borrowed) {
    pieces_.back().ends_push = true;
    ++pushes_;
  }
  return true;
}

void OutputQueue::copy(ConstBytes bytes) {
  while (!bytes.empty()) {
    size_t at = copied_end_ % kCopiedBytes;
    size_t length = std::min(bytes.size(), kCopiedBytes - at);
    std::byte* to = copied_.get() + at;
    std::memcpy(to, bytes.data(), length);
    bool continues =
        !empty() && !pieces_.back().borrowed && pieces_.back().data + pieces_.back().length == to;
    if (continues) {
      pieces_.back().length += length;
    } else {
      pieces_.push_back({to, length, 0, false, false, false, nullptr});
    }
    copied_end_ += length;
    bytes = bytes.subspan(length);
  }
}

size_t OutputQueue::settle(uint64_t cookie) {
  size_t copied = 0;
  for (size_t i = first_; i < pieces_.size(); ++i) {
    Piece& piece = pieces_[i];
    if (!piece.borrowed || piece.cookie != cookie || piece.settled) continue;
    piece.settled.reset(new std::byte[piece.length]);
    std::memcpy(piece.settled.get(), piece.data, piece.length);
    piece.data = piece.settled.get();
    piece.lendable = false;
    copied += piece.length;
  }
  return copied;
}

size_t OutputQueue::gather(std::span<iovec> out) const {
  size_t count = std::min(out.size(), pieces_.size() - first_);
  for (size_t i = 0; i < count; ++i) {
    const Piece& piece = pieces_[first_ + i];
    out[i] = {const_cast<std::byte*>(piece.data), piece.length};
  }
  return count;
}

size_t OutputQueue::lendable_run(size_t first) const {
  size_t bytes = 0;
  for (size_t i = first; i < pieces_.size() && pieces_[i].lendable; ++i) bytes += pieces_[i].length;
  return bytes;
}

Gathered OutputQueue::gather_apart(std::span<iovec> out, size_t least) const {
  Gathered gathered;
  gathered.lendable = !empty() && lendable_run(first_) >= least;
  bool in_run = false;  // a short one
  for (size_t i = first_; i < pieces_.size() && gathered.count < out.size(); ++i) {
    const Piece& piece = pieces_[i];
    const bool begins_run = piece.lendable && !in_run;
    const bool apart = gathered.lendable ? !piece.lendable : begins_run && lendable_run(i) >= least;
    if (apart) {
      gathered.cut = !gathered.lendable;
      break;
    }
    in_run = piece.lendable;
    out[gathered.count++] = {const_cast<std::byte*>(piece.data), piece.length};
  }
  return gathered;
}

void OutputQueue::consume(size_t length, PageLoans* loans) {
  while (length > 0) {
    Piece& piece = pieces_[first_];
    size_t taken = std::min(length, piece.length);
    if (piece.borrowed) {
      borrowed_bytes_ -= taken;
      if (loans != nullptr) {
        loans->note(piece.cookie, taken);
      } else {
        note_pushed(piece.cookie, taken);
      }
    } else {
      copied_begin_ += taken;
    }
    piece.data += taken;
    piece.length -= taken;
    length -= taken;
    if (piece.length > 0) break;
    if (piece.ends_push) --pushes_;
    piece.settled.reset();
    ++first_;
  }
  if (empty()) {
    pieces_.clear();
    first_ = 0;
    copied_begin_ = copied_end_ = 0;
  } else if (first_ >= kUsualPieces / 2) {
    pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<ptrdiff_t>(first_));
    first_ = 0;
  }
}

void OutputQueue::note_pushed(uint64_t cookie, size_t length) {
  if (has_pushed() && pushed_.back().cookie == cookie) {
    pushed_.back().length += length;
  } else {
    pushed_.push_back({cookie, length});
  }
}

bool OutputQueue::take_pushed(Pushed& out) {
  if (!has_pushed()) return false;
  out = pushed_[first_pushed_++];
  if (!has_pushed()) {
    pushed_.clear();
    first_pushed_ = 0;
  }
  return true;
}

void OutputQueue::clear() {
  pieces_.clear();
  pushed_.clear();
  first_ = first_pushed_ = 0;
  copied_begin_ = copied_end_ = 0;
  pushes_ = borrowed_bytes_ = 0;
}

}  // namespace sluice::tcp
