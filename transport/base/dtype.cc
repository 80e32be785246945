#include <sluice/base/dtype.h>

namespace sluice {
namespace {

// Source: DLPack 1.1 comments on each code; bool is 8 bits wide there.
bool width_allowed(TypeCode code, int bits) {
  switch (code) {
    case TypeCode::kInt:
    case TypeCode::kUint: return bits == 4 || bits == 8 || bits == 16 || bits == 32 || bits == 64;
    case TypeCode::kFloat: return bits == 16 || bits == 32 || bits == 64;
    case TypeCode::kOpaque: return bits == 8 || bits == 16 || bits == 32 || bits == 64;
    case TypeCode::kBfloat: return bits == 16;
    case TypeCode::kComplex: return bits == 64 || bits == 128;
    case TypeCode::kBool: return bits == 8;
    case TypeCode::kFloat6_e2m3fn:
    case TypeCode::kFloat6_e3m2fn: return bits == 6;
    case TypeCode::kFloat4_e2m1fn: return bits == 4;
    default: return bits == 8;  // the float8 family
  }
}

const char* name_of(TypeCode code) {
  switch (code) {
    case TypeCode::kInt: return "int";
    case TypeCode::kUint: return "uint";
    case TypeCode::kFloat: return "float";
    case TypeCode::kOpaque: return "opaque";
    case TypeCode::kBfloat: return "bfloat";
    case TypeCode::kComplex: return "complex";
    case TypeCode::kBool: return "bool";
    case TypeCode::kFloat8_e3m4: return "float8_e3m4_";
    case TypeCode::kFloat8_e4m3: return "float8_e4m3_";
    case TypeCode::kFloat8_e4m3b11fnuz: return "float8_e4m3b11fnuz_";
    case TypeCode::kFloat8_e4m3fn: return "float8_e4m3fn_";
    case TypeCode::kFloat8_e4m3fnuz: return "float8_e4m3fnuz_";
    case TypeCode::kFloat8_e5m2: return "float8_e5m2_";
    case TypeCode::kFloat8_e5m2fnuz: return "float8_e5m2fnuz_";
    case TypeCode::kFloat8_e8m0fnu: return "float8_e8m0fnu_";
    case TypeCode::kFloat6_e2m3fn: return "float6_e2m3fn_";
    case TypeCode::kFloat6_e3m2fn: return "float6_e3m2fn_";
    case TypeCode::kFloat4_e2m1fn: return "float4_e2m1fn_";
  }
  return "unknown";
}

}  // namespace

bool DataType::valid() const {
  if (static_cast<uint8_t>(code) > static_cast<uint8_t>(TypeCode::kFloat4_e2m1fn)) return false;
  return lanes >= 1 && lanes <= 1024 && width_allowed(code, bits);
}

std::string DataType::to_string() const {
  std::string text = name_of(code) + std::to_string(bits);
  if (lanes != 1) text += "x" + std::to_string(lanes);
  return text;
}

}  // namespace sluice
