"""Does to files what a Rust test has no safe function for. A command is a line: a name and its arguments, parted by
tabs. The answer is a line: 0, or the number of the error."""
import ctypes, fcntl, mmap, os, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
SETUP, GETEVENTS, SUBMIT = {'x86_64': (206, 208, 209), 'aarch64': (0, 4, 2)}[os.uname().machine]
PWRITE, DIRECT = 1, os.O_DIRECT
GET_FLAGS, SET_FLAGS = 0x80086601, 0x40086602
GET_XATTR, SET_XATTR = 0x801c581f, 0x401c5820
SET_VERSION, EXT4_SET_VERSION = 0x40087602, 0x40086604
context = ctypes.c_ulong()
assert libc.syscall(SETUP, 1, ctypes.byref(context)) == 0


def aligned(byte, length):
    buffer = mmap.mmap(-1, length)
    buffer[:] = bytes([int(byte)]) * length
    return buffer


def direct(path, offset, length, byte):
    fd = os.open(path, os.O_WRONLY | DIRECT)
    try:
        if os.pwrite(fd, aligned(byte, int(length)), int(offset)) != int(length):
            raise OSError(5, 'short')
    finally:
        os.close(fd)


def submit(path, offset, length, byte):
    fd = os.open(path, os.O_WRONLY | DIRECT)
    buffer = aligned(byte, int(length))
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    try:
        block = ctypes.create_string_buffer(struct.pack('<QIIHhIQQqQII', 0, 0, 0, PWRITE, 0, fd, address, int(length),
                                                        int(offset), 0, 0, 0))
        pointer, event = ctypes.c_void_p(ctypes.addressof(block)), ctypes.create_string_buffer(32)
        if libc.syscall(SUBMIT, context, 1, ctypes.byref(pointer)) != 1:
            raise OSError(ctypes.get_errno(), 'io_submit')
        assert libc.syscall(GETEVENTS, context, 1, 1, event, 0) == 1
        result = struct.unpack('<QQqq', event.raw)[2]
        if result != int(length):
            raise OSError(-result if result < 0 else 5, 'io_getevents')
    finally:
        os.close(fd)


def map(path, offset, length, byte, how):
    """Stores through a shared mapping, which is then synced, unmapped and the file synced, or unmapped only."""
    offset, length = int(offset), int(length)
    fd = os.open(path, os.O_RDWR)
    try:
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped = mmap.mmap(fd, offset + length - start, offset=start)
        mapped[offset - start:] = bytes([int(byte)]) * length
        if how == 'msync':
            mapped.flush()
        mapped.close()
        if how == 'fsync':
            os.fsync(fd)
    finally:
        os.close(fd)


held = []


def hold_map(path, length, byte):
    """Stores through a shared mapping, and keeps it."""
    fd = os.open(path, os.O_RDWR)
    held.append(mmap.mmap(fd, int(length)))
    held[-1][:] = bytes([int(byte)]) * int(length)
    os.close(fd)


def touch_map(path):
    """Reads a file through a mapping."""
    fd = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    mapped[:].count(b'x')
    mapped.close()
    os.close(fd)


def ioctl(path, command, argument):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return fcntl.ioctl(fd, command, argument)
    finally:
        os.close(fd)


def flag(path, bit, is_set):
    flags, = struct.unpack_from('<I', ioctl(path, GET_FLAGS, bytes(8)))
    flags = flags | int(bit) if is_set == '1' else flags & ~int(bit)
    ioctl(path, SET_FLAGS, struct.pack('<Q', flags))


def shared_flag(path, bit, is_set):
    words = list(struct.unpack('<7I', ioctl(path, GET_XATTR, bytes(28))))
    words[0] = words[0] | int(bit) if is_set == '1' else words[0] & ~int(bit)
    ioctl(path, SET_XATTR, struct.pack('<7I', *words))


def check_version(path, expected):
    """Both ioctls give the generation, and write no more than an int."""
    for command in (0x80087601, 0x80086603):
        answer = ioctl(path, command, b'\xff' * 8)
        assert answer == struct.pack('<I', int(expected)) + b'\xff' * 4, answer


def label(path, expected, new):
    """Compares the label, and sets another one unless that is `-`."""
    answer = ioctl(path, 0x81009431, b'\xff' * 256)
    assert answer[:17] == expected.encode().ljust(17, b'\0'), answer
    if new != '-':
        ioctl(path, 0x41009432, new.encode().ljust(256, b'\0'))


def project(path, number, new):
    words = list(struct.unpack('<7I', ioctl(path, GET_XATTR, bytes(28))))
    assert words[3] == int(number), words
    words[3] = int(new)
    ioctl(path, SET_XATTR, struct.pack('<7I', *words))


def version(path, number, which):
    ioctl(path, EXT4_SET_VERSION if which == 'ext4' else SET_VERSION, struct.pack('<Q', int(number)))


def fallocate(path, mode, offset, length):
    fd = os.open(path, os.O_RDWR)
    try:
        if libc.fallocate(fd, int(mode), ctypes.c_long(int(offset)), ctypes.c_long(int(length))) != 0:
            raise OSError(ctypes.get_errno(), 'fallocate')
    finally:
        os.close(fd)


def copy(source, target, source_offset, target_offset, length):
    a, b = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY)
    try:
        done = os.copy_file_range(a, b, int(length), int(source_offset), int(target_offset))
        if done != int(length):
            raise OSError(5, 'short')
    finally:
        os.close(a), os.close(b)


def send(source, target, length):
    a, b = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY)
    try:
        if os.sendfile(b, a, 0, int(length)) != int(length):
            raise OSError(5, 'short')
    finally:
        os.close(a), os.close(b)


def as_user_ioctl(path, uid, command, length):
    """An ioctl with zeros as another user, by a file that was opened before."""
    fd = os.open(path, os.O_RDONLY)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([]), os.setgid(int(uid)), os.setuid(int(uid))
            fcntl.ioctl(fd, int(command), bytes(int(length)))
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    os.close(fd)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        raise OSError(status, 'as another user')


def as_user(directory, name, uid, byte):
    """Writes a byte as another user, in a child; the way to the directory may be closed to that user."""
    child = os.fork()
    if child == 0:
        try:
            os.chdir(directory)
            os.setgroups([]), os.setgid(int(uid)), os.setuid(int(uid))
            fd = os.open(name, os.O_WRONLY)
            os.pwrite(fd, bytes([int(byte)]), 10)
            os.close(fd)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        raise OSError(status, 'as another user')


for line in sys.stdin:
    name, *arguments = line.rstrip('\n').split('\t')
    try:
        globals()[name](*arguments)
        answer = 0
    except OSError as error:
        answer = error.errno
    print(answer, flush=True)
