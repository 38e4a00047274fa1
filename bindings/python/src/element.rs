//! Element types by their names and formats in Python.

use shouter::DType;

/// The type with this name: the library's own, NumPy's, ml_dtypes' or PyTorch's.
pub(crate) fn by_name(name: &str) -> Option<DType> {
    let name = name.strip_prefix("torch.").unwrap_or(name);
    Some(match name {
        "float16" | "half" => DType::F16,
        "bfloat16" => DType::Bf16,
        "float32" | "float" => DType::F32,
        "float64" | "double" => DType::F64,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint8" => DType::U8,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        own => return DType::parse(own).ok(),
    })
}

/// The type with this format of the buffer protocol, with elements of `bytes` bytes.
pub(crate) fn by_format(format: &[u8], bytes: usize) -> Option<DType> {
    let format = match format {
        [b'@' | b'=', rest @ ..] => rest,
        [b'<', rest @ ..] if cfg!(target_endian = "little") => rest,
        [b'>', rest @ ..] if cfg!(target_endian = "big") => rest,
        [b'<' | b'>' | b'!', rest @ ..] if bytes == 1 => rest,
        other => other,
    };
    Some(match (format, bytes) {
        (b"?", 1) => DType::Bool,
        (b"e", 2) => DType::F16,
        (b"f", 4) => DType::F32,
        (b"d", 8) => DType::F64,
        (b"Zf" | b"F", 8) => DType::Complex64,
        (b"Zd" | b"D", 16) => DType::Complex128,
        (b"b" | b"h" | b"i" | b"l" | b"q" | b"n", 1) => DType::I8,
        (b"b" | b"h" | b"i" | b"l" | b"q" | b"n", 2) => DType::I16,
        (b"b" | b"h" | b"i" | b"l" | b"q" | b"n", 4) => DType::I32,
        (b"b" | b"h" | b"i" | b"l" | b"q" | b"n", 8) => DType::I64,
        (b"c" | b"B", 1) => DType::U8,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 2) => DType::U16,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 4) => DType::U32,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 8) => DType::U64,
        _ => return None,
    })
}

/// The type with this NumPy `typestr`, such as "<f4", with elements of `bytes` bytes.
pub(crate) fn by_typestr(typestr: &str, bytes: usize) -> Option<DType> {
    let format: &[u8] = match (typestr.as_bytes().get(1)?, bytes) {
        (b'b', _) => b"?",
        (b'i', _) => b"q",
        (b'u', _) => b"Q",
        (b'f', 2) => b"e",
        (b'f', 4) => b"f",
        (b'f', 8) => b"d",
        (b'c', 8) => b"F",
        (b'c', 16) => b"D",
        _ => return None,
    };
    // One byte has no byte order.
    let is_native = bytes == 1 || typestr.starts_with(if cfg!(target_endian = "little") { '<' } else { '>' });
    // An unsigned byte is "B" in the buffer protocol.
    let format = if (format, bytes) == (b"Q".as_slice(), 1) { b"B" } else { format };
    by_format(format, bytes).filter(|_| is_native)
}

/// The type with these code and bits in DLPack.
pub(crate) fn by_dlpack(code: u8, bits: u8) -> Option<DType> {
    Some(match (code, bits) {
        (0, 8) => DType::I8,
        (0, 16) => DType::I16,
        (0, 32) => DType::I32,
        (0, 64) => DType::I64,
        (1, 8) => DType::U8,
        (1, 16) => DType::U16,
        (1, 32) => DType::U32,
        (1, 64) => DType::U64,
        (2, 16) => DType::F16,
        (2, 32) => DType::F32,
        (2, 64) => DType::F64,
        (4, 16) => DType::Bf16,
        (5, 64) => DType::Complex64,
        (5, 128) => DType::Complex128,
        (6, 8) => DType::Bool,
        (10, 8) => DType::F8E4M3,
        (12, 8) => DType::F8E5M2,
        _ => return None,
    })
}

/// The name of a type in NumPy, or ml_dtypes.
pub(crate) fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::F8E4M3 => "float8_e4m3fn",
        DType::F8E5M2 => "float8_e5m2",
        DType::I8 => "int8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        DType::U16 => "uint16",
        DType::U32 => "uint32",
        DType::U64 => "uint64",
        own => own.name(),
    }
}
