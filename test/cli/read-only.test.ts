// `--read-only`: commands that look work on a damaged store, those that change are refused.
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { cliOn } from "../support/cli.ts";
import { zeroRoot } from "../support/damage.ts";
import { disagreeing } from "../support/damaged-file.ts";
import { slow } from "../support/jobs.ts";
import { Place } from "../support/processes.ts";

test("NFR-009 with --read-only a damaged store can be inspected as far as it can be read, and nothing is changed", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 1 });
  await engine.close();
  const { run } = cliOn(t, place.url);
  const sound = await run("job", id, "--read-only");
  assert.equal(sound.code, 0, sound.stderr);
  const refused = await run("cancel", id, "--read-only");
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /opened with readOnly, so nothing can change jobs\.\n {2}Nothing was written/);
  zeroRoot(place.path, "outlive_jobs");
  const workers = await run("workers", "--read-only");
  assert.equal(workers.code, 0, workers.stderr);
  const jobs = await run("jobs", "--read-only");
  assert.equal(jobs.code, 1);
  assert.match(jobs.stderr, /malformed.*\n.*other reads still work.*outlive check --repair/);
});

test("with --read-only a repair, a migration and a worker are refused, and neither they nor a check write anything", async (t) => {
  const place = new Place(t);
  await disagreeing(place);
  // SQLite itself puts an empty log and its index next to a file that is read.
  const isSqlites = (name: string): boolean =>
    name.endsWith("-shm") || (name.endsWith("-wal") && statSync(`${place.path}-wal`).size === 0);
  const files = (): unknown[] => [
    readFileSync(place.path),
    readdirSync(place.folder, { encoding: "utf8", recursive: true })
      .filter((name) => !isSqlites(name))
      .toSorted(),
  ];
  const before = files();
  const { run } = cliOn(t, place.url);
  const refusals = [
    [["check", "--repair", "--yes"], /With --read-only this command can't repair the store\.\n {2}Nothing was written/],
    [["migrate", "up"], /With --read-only this command can't migrate the store\./],
    [["migrate", "down", "--to", "0", "--force"], /With --read-only this command can't undo migrations\./],
    [["work", "*.ts"], /With --read-only this command can't work\.\n.*Omit --read-only/],
  ] as const;
  for (const [args, words] of refusals) {
    const { code, stderr } = await run(...args, "--read-only");
    assert.equal(code, 1, args.join(" "));
    assert.match(stderr, words);
    assert.deepEqual(files(), before, args.join(" "));
  }
  const checked = await run("check", "--integrity", "--read-only");
  assert.equal(checked.code, 1);
  assert.match(checked.stdout, /integrity FAILED/);
  assert.deepEqual(files(), before);
});

test("--read-only does not finish an interrupted repair: it says which command does", async (t) => {
  const place = new Place(t);
  await (await place.engine()).close();
  const journal = `${place.path}.swap`;
  writeFileSync(journal, JSON.stringify({ keptAs: `${place.path}.damaged-1` }));
  const { run } = cliOn(t, place.url);
  for (const args of [["status"], ["check"], ["check", "--integrity"]]) {
    const { code, stdout, stderr } = await run(...args, "--read-only");
    assert.equal(code, 1, args.join(" "));
    assert.match(stdout + stderr, /was interrupted.*\s+Nothing was written\. Run `outlive check` without --read-only/);
    assert.ok(existsSync(journal), args.join(" "));
  }
  assert.equal((await run("check")).code, 0);
  assert.ok(!existsSync(journal), "without the flag it is finished");
});
