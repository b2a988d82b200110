// C18: a database that was opened by a symbolic link had a second folder for locks, so its workers and the others did not see
// each other's deaths until a lease had passed.
import assert from "node:assert/strict";
import { linkSync, mkdirSync, readdirSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { slow } from "../support/jobs.ts";
import { type ChildOptions, PATIENT, Place } from "../support/processes.ts";
import { inNamespaces, nodeUnder } from "./namespaces.ts";

/** Long enough for a death to be found by its lock, short enough to wait for if it is not. */
const heartbeat = { ...PATIENT, lease: "4s" } as const;

async function diesAndIsFound(place: Place, options: ChildOptions): Promise<string | undefined> {
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const victim = place.child({ heartbeat, ...options });
  await victim.untilFact("started", { id });
  const heir = place.child({ heartbeat });
  await heir.untilFact("working");
  victim.kill();
  await heir.untilFact("started", { id, attempt: 2 });
  return (await engine.incidents())[0]?.how;
}

test("C18: the death of a worker that knows the file by a symbolic link is found by its lock", async (t) => {
  const place = new Place(t);
  const link = join(elsewhere(place), "link.db");
  symlinkSync(place.path, link);
  assert.equal(await diesAndIsFound(place, { url: `sqlite:${link}` }), "gone");
});

test("U: the death of a worker that knows the folder by a symbolic link is found by its lock", async (t) => {
  const place = new Place(t);
  const link = join(elsewhere(place), "link");
  symlinkSync(place.folder, link);
  assert.equal(await diesAndIsFound(place, { url: `sqlite:${join(link, "jobs.db")}` }), "gone");
});

test("U: the death of a worker that knows the folder by a bind mount is found by its lock", inNamespaces, async (t) => {
  const place = new Place(t);
  const mount = elsewhere(place);
  const execPath = nodeUnder(place.folder, "node-with-a-mount", "-m", `mount --bind ${place.folder} ${mount}`);
  assert.equal(await diesAndIsFound(place, { execPath, url: `sqlite:${join(mount, "jobs.db")}` }), "gone");
});

test("C18: a file that is mounted alone is refused, because its log is not next to it", inNamespaces, async (t) => {
  const place = new Place(t);
  await (await place.engine()).close();
  const mounted = join(elsewhere(place), "jobs with a blank.db");
  writeFileSync(mounted, "");
  const execPath = nodeUnder(place.folder, "node-with-a-mount", "-m", `mount --bind ${place.path} "${mounted}"`);
  const child = place.child({ execPath, url: `sqlite:${mounted}` });
  await assert.rejects(child.untilFact("open"), /is mounted as a single file/);
  assert.deepEqual(readdirSync(join(place.folder, "elsewhere")), ["jobs with a blank.db"]);
});

test("C18: a file with two hard links is refused by both names, because each would have its own log", async (t) => {
  const place = new Place(t);
  await (await place.engine()).close();
  const link = join(elsewhere(place), "link.db");
  linkSync(place.path, link);
  for (const name of [link, place.path])
    await assert.rejects(
      open(`sqlite:${name}`, { logger: false }).then((engine) => engine.close()),
      /has 2 names \(hard links\)/,
    );
  assert.deepEqual(readdirSync(join(place.folder, "elsewhere")), ["link.db"]);
  unlinkSync(link);
  await (await place.engine()).close();
});

function elsewhere(place: Place): string {
  const folder = join(place.folder, "elsewhere");
  mkdirSync(folder);
  return folder;
}
