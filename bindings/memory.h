// What Python hands over as memory, in one of three ways:
// - anything with the buffer protocol (NumPy);
// - anything whose type offers DLPack's table of C functions (torch from 2.10 on): the address, the shape and the strides
//   without a single Python call;
// - anything that answers as an older tensor of torch does: data_ptr(), dtype, shape, stride().
// A format is the letter of Python's struct module: f d e ? q, and H, the bits of a uint16, for bfloat16, which has none.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace rootdk {

// The part of DLPack's exchange table that is used here, as DLPack 1.3 lays it out.
struct exchange_table {
  uint32_t major, minor;
  exchange_table* older;
  void (*unused[3])();
  int (*view)(void* object, nanobind::dlpack::dltensor* out);  // owns nothing; 0 is success, else a Python error is set
};

// Null where the type has none. The last answer is kept, because nearly all calls are with one type. Its type is held, so that
// no other one can get its address.
inline const exchange_table* exchange_table_of(PyObject* given) {
  static PyTypeObject* last_type = nullptr;
  static const exchange_table* last_table = nullptr;
  PyTypeObject* type = Py_TYPE(given);
  if (type == last_type) return last_table;
  const exchange_table* table = nullptr;
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule) table = static_cast<const exchange_table*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  PyErr_Clear();
  Py_XDECREF(capsule);
  while (table && table->major > 1) table = table->older;
  if (table && (table->major < 1 || !table->view)) table = nullptr;
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  PyTypeObject* const former = last_type;
  last_table = table, last_type = type;
  Py_XDECREF(reinterpret_cast<PyObject*>(former));
  return table;
}

class memory {
 public:
  // Throws what Python raises, or ValueError. The Python object must outlive this one.
  memory(nanobind::handle given, bool writable) {
    if (PyObject_CheckBuffer(given.ptr()))
      read_buffer(given.ptr(), writable);
    else if (const exchange_table* table = exchange_table_of(given.ptr()))
      read_table(given.ptr(), *table);
    else
      read_attributes(given);
    for (int axis = 0; axis < axes_; ++axis) size_ *= shape_[axis];
  }
  memory(const memory&) = delete;
  ~memory() {
    if (held_) PyBuffer_Release(&buffer_);
  }

  int axes() const { return axes_; }
  char format() const { return format_; }  // 0 for any type but those above
  int64_t size() const { return size_; }
  char* data() const { return data_; }
  // Counted from the end: 0 is the last axis. Strides are in items.
  int64_t shape_from_end(int axis) const { return shape_[axes_ - 1 - axis]; }
  int64_t stride_from_end(int axis) const { return stride_[axes_ - 1 - axis]; }

  static char format_of(nanobind::dlpack::dtype type) {
    using nanobind::dlpack::dtype_code;
    switch (dtype_code(type.code)) {
      case dtype_code::Float: return type.bits == 32 ? 'f' : type.bits == 64 ? 'd' : type.bits == 16 ? 'e' : 0;
      case dtype_code::Bfloat: return 'H';
      case dtype_code::Bool: return '?';
      case dtype_code::Int: return type.bits == 64 ? 'q' : 0;
      default: return 0;
    }
  }

 private:
  void read_buffer(PyObject* given, bool writable) {
    const int kind = PyBUF_STRIDED_RO | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(given, &buffer_, kind) != 0) throw nanobind::python_error();
    held_ = true;
    data_ = static_cast<char*>(buffer_.buf);
    const int64_t item_bytes = buffer_.itemsize;
    format_ = buffer_.format[0] && !buffer_.format[1] ? buffer_.format[0] : 0;
    if (format_ == 'l' && item_bytes == 8) format_ = 'q';
    bool whole = true;
    set_axes(buffer_.ndim);
    for (int axis = 0; axis < axes_; ++axis) {
      shape_[axis] = buffer_.shape[axis];
      stride_[axis] = buffer_.strides[axis] / item_bytes;
      whole &= buffer_.strides[axis] % item_bytes == 0 || shape_[axis] <= 1;
    }
    if (whole) return;
    PyBuffer_Release(&buffer_);  // a constructor that throws runs no destructor
    throw nanobind::value_error("kernel: elements must lie at multiples of their size");
  }

  void read_table(PyObject* given, const exchange_table& table) {
    nanobind::dlpack::dltensor view;
    if (table.view(given, &view) != 0) throw nanobind::python_error();
    if (view.device.device_type != nanobind::device::cpu::value || view.dtype.lanes != 1)
      throw nanobind::type_error("kernel: memory must be on the CPU");
    data_ = static_cast<char*>(view.data) + view.byte_offset;
    format_ = format_of(view.dtype);
    set_axes(view.ndim);
    int64_t contiguous = 1;
    for (int axis = axes_; axis-- > 0;) {
      shape_[axis] = view.shape[axis];
      stride_[axis] = view.strides ? view.strides[axis] : contiguous;
      contiguous *= shape_[axis];
    }
  }

  void read_attributes(nanobind::handle given) {
    const nanobind::tuple shape(given.attr("shape")), strides(given.attr("stride")());
    const nanobind::str type(nanobind::handle(nanobind::object(given.attr("dtype"))));
    for (const auto& [name, format] :
         {std::pair("torch.float32", 'f'), std::pair("torch.float64", 'd'), std::pair("torch.float16", 'e'),
          std::pair("torch.bfloat16", 'H'), std::pair("torch.bool", '?'), std::pair("torch.int64", 'q')})
      if (std::strcmp(type.c_str(), name) == 0) format_ = format;
    data_ = static_cast<char*>(PyLong_AsVoidPtr(nanobind::object(given.attr("data_ptr")()).ptr()));
    set_axes(int(shape.size()));
    for (int axis = 0; axis < axes_; ++axis) {
      shape_[axis] = nanobind::cast<int64_t>(shape[axis]);
      stride_[axis] = nanobind::cast<int64_t>(strides[axis]);
    }
  }

  void set_axes(int axes) {
    axes_ = axes;
    if (axes > few_axes) many_.resize(2 * size_t(axes));
    shape_ = axes > few_axes ? many_.data() : few_;
    stride_ = shape_ + axes;
  }

  static constexpr int few_axes = 6;  // so that a call with many arrays stays in a few cache lines
  char* data_ = nullptr;
  int64_t *shape_ = nullptr, *stride_ = nullptr;
  int64_t size_ = 1;
  int axes_ = 0;
  char format_ = 0;
  bool held_ = false;
  Py_buffer buffer_;
  int64_t few_[2 * few_axes];
  std::vector<int64_t> many_;
};

}  // namespace rootdk
