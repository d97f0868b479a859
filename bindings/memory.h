// What Python hands over as memory, in one of three ways:
// - anything with the buffer protocol (NumPy);
// - anything whose type offers DLPack's table of C functions (torch from 2.10 on): the address, the shape and the strides
//   without a single Python call;
// - (address, item bytes, shape, strides in items, owner), for tensors without that table.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace rootdk {

// The part of DLPack's exchange table that is used here, as DLPack 1.3 lays it out.
struct exchange_table {
  uint32_t major, minor;
  exchange_table* older;
  void (*unused[3])();
  int (*view)(void* object, nanobind::dlpack::dltensor* out);  // owns nothing; 0 is success, else a Python error is set
};

// Null where the type has none. Types live on and are few, so the last answer is kept.
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
  last_table = table, last_type = type;
  return table;
}

class memory {
 public:
  static constexpr int most_axes = 64;  // as many as an array of NumPy has

  // Throws TypeError or ValueError. The Python object must outlive this one.
  memory(nanobind::handle given, bool writable) {
    if (PyTuple_Check(given.ptr()))
      read_tuple(given.ptr());
    else if (PyObject_CheckBuffer(given.ptr()))
      read_buffer(given.ptr(), writable);
    else if (const exchange_table* table = exchange_table_of(given.ptr()))
      read_table(given.ptr(), *table);
    else
      throw nanobind::type_error("kernel: memory must be a buffer, a tensor or a tuple");
    for (int axis = 0; axis < axes_; ++axis) size_ *= shape_[axis];
  }
  memory(const memory&) = delete;
  ~memory() {
    if (held_) PyBuffer_Release(&buffer_);
  }

  int axes() const { return axes_; }
  int64_t item_bytes() const { return item_bytes_; }
  int64_t size() const { return size_; }
  char* data() const { return data_; }
  // Counted from the end: 0 is the last axis.
  int64_t shape_from_end(int axis) const { return shape_[axes_ - 1 - axis]; }
  int64_t stride_from_end(int axis) const { return stride_[axes_ - 1 - axis]; }

 private:
  void read_tuple(PyObject* given) {
    if (PyTuple_Size(given) != 5)
      throw nanobind::type_error("kernel: memory must be (address, item bytes, shape, strides, owner)");
    PyObject *shape = PyTuple_GetItem(given, 2), *strides = PyTuple_GetItem(given, 3);
    data_ = reinterpret_cast<char*>(PyLong_AsVoidPtr(PyTuple_GetItem(given, 0)));
    item_bytes_ = PyLong_AsLongLong(PyTuple_GetItem(given, 1));
    if (!PyTuple_Check(shape) || !PyTuple_Check(strides) || PyTuple_Size(shape) != PyTuple_Size(strides))
      throw nanobind::type_error("kernel: shape and strides must be tuples of one length");
    set_axes(PyTuple_Size(shape));
    for (int axis = 0; axis < axes_; ++axis) {
      shape_[axis] = PyLong_AsLongLong(PyTuple_GetItem(shape, axis));
      stride_[axis] = PyLong_AsLongLong(PyTuple_GetItem(strides, axis));
    }
    if (PyErr_Occurred()) throw nanobind::python_error();
  }

  void read_table(PyObject* given, const exchange_table& table) {
    nanobind::dlpack::dltensor view;
    if (table.view(given, &view) != 0) throw nanobind::python_error();
    if (view.device.device_type != nanobind::device::cpu::value || view.dtype.lanes != 1)
      throw nanobind::type_error("kernel: memory must be on the CPU");
    data_ = static_cast<char*>(view.data) + view.byte_offset;
    item_bytes_ = view.dtype.bits / 8;
    set_axes(view.ndim);
    int64_t contiguous = 1;
    for (int axis = axes_; axis-- > 0;) {
      shape_[axis] = view.shape[axis];
      stride_[axis] = view.strides ? view.strides[axis] : contiguous;
      contiguous *= shape_[axis];
    }
  }

  void read_buffer(PyObject* given, bool writable) {
    if (PyObject_GetBuffer(given, &buffer_, writable ? PyBUF_STRIDED : PyBUF_STRIDED_RO) != 0) throw nanobind::python_error();
    held_ = true;
    data_ = static_cast<char*>(buffer_.buf);
    item_bytes_ = buffer_.itemsize;
    bool whole = true;
    set_axes(buffer_.ndim);
    for (int axis = 0; axis < axes_; ++axis) {
      shape_[axis] = buffer_.shape[axis];
      stride_[axis] = buffer_.strides[axis] / item_bytes_;
      whole &= buffer_.strides[axis] % item_bytes_ == 0 || shape_[axis] <= 1;
    }
    if (whole) return;
    PyBuffer_Release(&buffer_);  // a constructor that throws runs no destructor
    throw nanobind::value_error("kernel: elements must lie at multiples of their size");
  }

  void set_axes(Py_ssize_t axes) {
    if (axes <= most_axes) {
      axes_ = int(axes);
      return;
    }
    if (held_) PyBuffer_Release(&buffer_);
    throw nanobind::value_error("kernel: too many axes");
  }

  char* data_ = nullptr;
  int64_t item_bytes_ = 0, size_ = 1;
  int axes_ = 0;
  int64_t shape_[most_axes], stride_[most_axes];
  Py_buffer buffer_;
  bool held_ = false;
};

}  // namespace rootdk
