// Places where a SQLite file is not safe: network file systems and SQLite versions with a known bug. Neither can be had here
// (a mount of NFS needs a server, and this Node carries one SQLite only), so what the kernel and SQLite say is replaced; what
// the engine makes of it is real.
import assert from "node:assert/strict";
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { connect } from "../../src/client.ts";
import { ErrorCode, open } from "../../src/index.ts";
import { networkFilesystem } from "../../src/platform/filesystem.ts";
import { sqliteIsSafe } from "../../src/stores/sqlite/errors.ts";
import { Place } from "../support/processes.ts";
import { says } from "./engines.ts";

test("network file systems are known by what statfs says of them, local ones are not among them", () => {
  const network: [number, string][] = [
    [0x6969, "NFS"],
    [0x517b, "SMB"],
    [0xff534d42, "CIFS"],
    [0xfe534d42, "SMB2"],
    [0x01021997, "9P"],
    [0x5346414f, "AFS"],
    [0x00c36400, "Ceph"],
    [0x0bd00bd0, "Lustre"],
    [0x65735546, "FUSE"],
  ];
  for (const [magic, name] of network) assert.equal(networkFilesystem(magic), name);
  const local = {
    ext4: 0xef53,
    xfs: 0x58465342,
    btrfs: 0x9123683e,
    tmpfs: 0x01021994,
    overlay: 0x794c7630,
    zfs: 0x2fc12fc1,
    fusectl: 0x65735543,
  };
  for (const [name, magic] of Object.entries(local)) assert.equal(networkFilesystem(magic), undefined, name);
});

function pretendNfs(t: TestContext): void {
  const mocked = t.mock.method(fs, "statfsSync", () => ({ type: 0x6969 }));
  syncBuiltinESMExports();
  t.after(() => {
    mocked.mock.restore();
    syncBuiltinESMExports();
  });
}

test("a file on a network file system is refused before it is made, unless the program allows it", async (t) => {
  const place = new Place(t);
  pretendNfs(t);
  for (const opening of [open(place.url, { logger: false }), connect(place.url)])
    await assert.rejects(
      opening,
      says(ErrorCode.storeUnusable, place.path, "network file system (NFS)", "Put the file on a local disk"),
    );
  assert.deepEqual(fs.readdirSync(place.folder), []);
  await using engine = await open(place.url, { logger: false, sqlite: { allowNetworkFilesystem: true } });
  assert.equal((await engine.health()).ok, true);
});

test("the SQLite store is refused on Windows before anything is made, unless the program allows it", async (t) => {
  const place = new Place(t);
  const { platform } = process;
  Object.defineProperty(process, "platform", { value: "win32" });
  t.after(() => Object.defineProperty(process, "platform", { value: platform }));
  for (const opening of [open(place.url, { logger: false }), connect(place.url)])
    await assert.rejects(
      opening,
      says(ErrorCode.storeUnusable, place.path, "not supported on Windows", "WSL or PostgreSQL", "allowUnsafe"),
    );
  assert.deepEqual(fs.readdirSync(place.folder), []);
  await using memory = await open("sqlite::memory:", { logger: false });
  assert.equal((await memory.health()).ok, true);
  await using engine = await open(place.url, { logger: false, sqlite: { allowUnsafe: true } });
  assert.equal((await engine.health()).ok, true);
});

test("versions of SQLite in which two connections can corrupt a file are known", () => {
  const unsafe = ["3.7.0", "3.35.5", "3.44.5", "3.45.0", "3.49.2", "3.50.0", "3.50.6", "3.51.0", "3.51.2"];
  const safe = ["3.44.6", "3.50.7", "3.51.3", "3.52.0", "3.53.0", "3.53.4", "3.60.1", "4.0.0"];
  for (const version of unsafe) assert.equal(sqliteIsSafe(version), false, version);
  for (const version of safe) assert.equal(sqliteIsSafe(version), true, version);
  assert.equal(sqliteIsSafe(process.versions["sqlite"]!), true, "the one of this Node");
});

function pretendSqlite(t: TestContext, version: string, nul: string): void {
  const { prepare } = DatabaseSync.prototype as unknown as Record<"prepare", (sql: string) => StatementSync>;
  t.mock.method(DatabaseSync.prototype, "prepare", function (this: DatabaseSync, sql: string) {
    return sql.includes("sqlite_version()")
      ? ({ get: () => ({ version, nul }) } as unknown as StatementSync)
      : prepare.call(this, sql);
  });
}

for (const [what, version, nul, said] of [
  ["a corrupting SQLite", "3.51.2", "a\0b", "SQLite 3.51.2 can corrupt a database"],
  ["a Node that cuts texts at NUL", "3.53.4", "a", "cuts texts at a NUL"],
] as const)
  test(`${what} is refused, unless the program allows it`, async (t) => {
    const place = new Place(t);
    pretendSqlite(t, version, nul);
    await assert.rejects(
      open(place.url, { logger: false }),
      says(ErrorCode.sqliteUnsafe, process.version, said, "Use Node 24.16 or newer", "allowUnsafe"),
    );
    await using engine = await open(place.url, { logger: false, sqlite: { allowUnsafe: true } });
    assert.equal((await engine.health()).ok, true);
  });
