-- What an event log has written whose schema is 4.
PRAGMA page_size = 4096;
PRAGMA auto_vacuum = 2;
PRAGMA application_id = 1634168940;
PRAGMA user_version = 4;
PRAGMA journal_mode = WAL;
BEGIN;
CREATE TABLE streams (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT UNIQUE,
        first INTEGER NOT NULL DEFAULT 1,
        last INTEGER NOT NULL DEFAULT 0,
        closed INTEGER NOT NULL DEFAULT 0,
        source INTEGER NOT NULL DEFAULT 0,
        bytes INTEGER NOT NULL DEFAULT 0
    );
CREATE TABLE batches (
        gid INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        source INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        sum INTEGER NOT NULL,
        body BLOB NOT NULL
    );
CREATE UNIQUE INDEX batches_by_offset ON batches (stream, first);
CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        record TEXT NOT NULL,
        updated_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
CREATE TABLE cursors (
        stream INTEGER NOT NULL,
        consumer TEXT NOT NULL,
        offset INTEGER NOT NULL,
        PRIMARY KEY (stream, consumer)
    ) WITHOUT ROWID;
CREATE TABLE beat (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        host TEXT NOT NULL,
        at_ms INTEGER NOT NULL
    );
CREATE TABLE position (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        gid INTEGER NOT NULL
    );
CREATE TABLE requests (
        name TEXT PRIMARY KEY,
        record TEXT NOT NULL,
        at_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
CREATE INDEX requests_by_time ON requests (at_ms);
CREATE TABLE byte_streams (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        path TEXT UNIQUE,
        content_type TEXT NOT NULL,
        closed INTEGER NOT NULL,
        deleted INTEGER NOT NULL DEFAULT 0,
        idle_s INTEGER,
        until_ms INTEGER,
        source INTEGER,
        fork_at INTEGER NOT NULL DEFAULT 0,
        fork_path TEXT,
        fork_beyond INTEGER NOT NULL DEFAULT 0,
        seq TEXT,
        closer TEXT,
        mapped INTEGER
    );
CREATE TABLE byte_rows (
        gid INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        sum INTEGER NOT NULL,
        body BLOB NOT NULL
    );
CREATE UNIQUE INDEX byte_rows_by_position ON byte_rows (stream, last);
CREATE TABLE producers (
        stream INTEGER NOT NULL,
        id TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        PRIMARY KEY (stream, id)
    ) WITHOUT ROWID;
CREATE TABLE replicated (
        stream INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        acknowledged INTEGER NOT NULL
    );
CREATE TABLE put_aside (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        at_ms INTEGER NOT NULL,
        body BLOB NOT NULL
    );
INSERT INTO streams VALUES (1, 'one', 1, 6, 0, 12, 471);
INSERT INTO streams VALUES (2, 'two', 1, 7, 0, 8, 235);
INSERT INTO streams VALUES (3, 'aged', 4, 4, 0, 0, 40);
INSERT INTO streams VALUES (4, 'over', 1, 2, 1, 0, 103);
INSERT INTO batches VALUES (1, 1, 1, 1, 1700000001000, 0, 70, 2703871818, CAST('{"e":{"session:status":{"status":"begun","detail":"it''s \"one\"\n"}}}
' AS BLOB));
INSERT INTO batches VALUES (2, 1, 2, 3, 1700000002000, 7, 117, 4024736336, CAST('{"t":1,"e":{"turn:started":{"prompt":"hällo","attachments":[]}}}
{"t":1,"d":1,"e":{"stream:text":{"text":"one 3"}}}
' AS BLOB));
INSERT INTO batches VALUES (3, 2, 1, 2, 1700000003000, 3, 96, 2840393976, CAST('{"t":1,"e":{"stream:text":{"text":"two 1"}}}
{"t":1,"d":1,"e":{"stream:text":{"text":"two 2"}}}
' AS BLOB));
INSERT INTO batches VALUES (5, 1, 4, 4, 1700000005000, 9, 116, 3710650831, CAST('{"v":3,"e":{"external":{"kind":"agent:action:prompt:called","version":3,"payload":{"content":["go on",1.5,null]}}}}
' AS BLOB));
INSERT INTO batches VALUES (6, 2, 3, 7, 1700000006000, 8, 139, 3009630899, CAST('{"t":1,"e":{"session:gap":{"from":"00000000000000000003","to":"00000000000000000006"}}}
{"t":1,"d":1,"e":{"stream:text":{"text":"two 7"}}}
' AS BLOB));
INSERT INTO batches VALUES (7, 4, 1, 2, 1700000007000, 0, 103, 1970238418, CAST('{"t":2,"e":{"session:idle":{}}}
{"t":2,"d":1,"e":{"session:ended":{"reason":"killed","receipt":null}}}
' AS BLOB));
INSERT INTO batches VALUES (8, 3, 4, 4, 1700000008000, 0, 40, 209344442, CAST('{"e":{"stream:text":{"text":"aged 4"}}}
' AS BLOB));
INSERT INTO batches VALUES (10, 1, 5, 6, 1700000010000, 12, 168, 3290751658, CAST('{"t":2,"e":{"harness:event-received":{"agent":"pi","payload":{"line":"{ \"type\": \"x\", \"deep\": {\"er\":[]}}"}}}}
{"t":2,"d":1,"e":{"stream:text":{"text":"one 6"}}}
' AS BLOB));
INSERT INTO sessions VALUES ('one', '{"title":"one","turns":2}', 1795754033474);
INSERT INTO sessions VALUES ('two', '{"title":"it''s two"}', 1795754033470);
INSERT INTO cursors VALUES (1, 'actions', 4);
INSERT INTO cursors VALUES (1, 'reader', 2);
INSERT INTO cursors VALUES (2, 'reader', 7);
INSERT INTO cursors VALUES (3, 'reader', 2);
INSERT INTO beat VALUES (1, '1@boot', 1700000050123);
INSERT INTO position VALUES (1, 11);
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES ('streams', 6);
COMMIT;
