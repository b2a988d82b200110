// One file has one path, whatever name an address uses for it.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { type TestContext, test } from "node:test";
import { connect } from "../../src/client.ts";
import { job, open } from "../../src/index.ts";
import { sqlitePath } from "../../src/stores/sqlite/address.ts";

function folder(t: TestContext): string {
  const path = realpathSync(mkdtempSync(join(tmpdir(), "outlive-test-")));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

test("a link to the file and a link to its folder lead to the file", (t) => {
  const place = folder(t);
  mkdirSync(join(place, "real"));
  const real = join(place, "real", "jobs.db");
  writeFileSync(real, "");
  symlinkSync("real", join(place, "folder"));
  symlinkSync(real, join(place, "absolute.db"));
  symlinkSync(join("folder", "jobs.db"), join(place, "chained.db"));
  const names = [real, join(place, "folder", "jobs.db"), join(place, "absolute.db"), join(place, "chained.db")];
  for (const name of [...names, join(place, "real", ".", "..", "real", "jobs.db"), relative(process.cwd(), real)])
    assert.equal(sqlitePath(`sqlite:${name}`), real, name);
});

test("a file that is not there yet is resolved as far as it can be", (t) => {
  const place = folder(t);
  mkdirSync(join(place, "real"));
  const real = join(place, "real", "jobs.db");
  symlinkSync("real", join(place, "folder"));
  symlinkSync(join("folder", "jobs.db"), join(place, "dangling.db"));
  assert.equal(sqlitePath(`sqlite:${join(place, "folder", "jobs.db")}`), real);
  assert.equal(sqlitePath(`sqlite:${join(place, "dangling.db")}`), real);
  const nowhere = join(place, "nowhere", "jobs.db");
  assert.equal(sqlitePath(`sqlite:${nowhere}`), nowhere);
});

test("links that lead in a circle are an error that says so", async (t) => {
  const place = folder(t);
  symlinkSync("b.db", join(place, "a.db"));
  symlinkSync("a.db", join(place, "b.db"));
  await assert.rejects(open(`sqlite:${join(place, "a.db")}`, { logger: false }), {
    code: "STORE_UNUSABLE",
    message: /a\.db lead in a circle/,
  });
});

test("a database in memory has no path", () => {
  assert.equal(sqlitePath("sqlite::memory:"), ":memory:");
});

test("a file that is created through a dangling link is private, and a client finds it by both names", async (t) => {
  const place = folder(t);
  mkdirSync(join(place, "real"));
  symlinkSync(join("real", "jobs.db"), join(place, "link.db"));
  const kind = job("kind");
  await using engine = await open(`sqlite:${join(place, "link.db")}`, { jobs: [kind], logger: false });
  await using client = await connect(`sqlite:${join(place, "real", "jobs.db")}`, { jobs: [kind] });
  assert.equal(statSync(join(place, "real", "jobs.db")).mode & 0o777, 0o600);
  const { id } = await client.enqueue(kind, {});
  assert.equal((await engine.get(id))?.state, "queued");
});
