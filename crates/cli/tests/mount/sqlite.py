"""Commits transactions to an SQLite database, or checks what is in one."""
import hashlib, sqlite3, sys


def contents(number):
    """Bytes that follow from a number, 32 to 4,064 of them."""
    return hashlib.sha256(str(number).encode()).digest() * (1 + number % 127)


def commit(path, journal, first):
    db = sqlite3.connect(path, isolation_level=None)
    assert db.execute('pragma journal_mode=' + journal).fetchone()[0] == journal
    # With a rollback journal a transaction is durable once the removal of the journal is: only `extra` waits for that.
    db.execute('pragma synchronous=extra')
    db.execute('create table if not exists items(number integer primary key, bytes blob)')
    db.execute('create table if not exists totals(name text primary key, count integer)')
    number = int(first)
    while True:
        db.execute('begin immediate')
        db.execute('insert into items values(?, ?)', (number, contents(number)))
        db.execute('insert or replace into totals values(?, ?)', ('items', number + 1))
        # Pages change in the middle of the file, too.
        db.execute('update items set bytes=? where number=?', (contents(number), number * 7919 % (number + 1)))
        db.execute('update items set bytes=? where number=?', (contents(number * 7919 % (number + 1)), number * 7919 % (number + 1)))
        db.execute('commit')
        print(number, flush=True)
        number += 1


def check(path):
    db = sqlite3.connect(path)
    assert db.execute('pragma integrity_check').fetchall() == [('ok',)]
    if not db.execute("select name from sqlite_master where name='items'").fetchall():
        print(0)
        return
    rows = db.execute('select number, bytes from items order by number').fetchall()
    for expected, (number, stored) in enumerate(rows):
        assert number == expected and stored == contents(number), number
    total = db.execute('select count from totals').fetchall() if rows else [(0,)]
    assert total == [(len(rows),)], total
    print(len(rows))


{'commit': commit, 'check': check}[sys.argv[1]](*sys.argv[2:])
