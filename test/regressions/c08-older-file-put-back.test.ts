// C8: an older copy of the file is restored while an old worker lives. The worker goes on with a file that has no name any more, and
// the rows of the copy say that it is alive, so the epoch was not raised and the same (epoch, fence) was given twice.
import assert from "node:assert/strict";
import { copyFileSync, renameSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { attach } from "../../src/engine/open.ts";
import { Fleet } from "../supervisor/fleet.ts";
import { slow } from "../support/jobs.ts";
import { freezeOutsideOfAWrite, Place, untilTrue } from "../support/processes.ts";
import { operatorOf } from "../support/former-names.ts";

/** Everything that is in the file now, as one file. */
function copyOf(place: Place, name: string): string {
  const copy = `${place.folder}/${name}`;
  const db = new DatabaseSync(place.path);
  db.exec(`VACUUM INTO '${copy}'`);
  db.close();
  return copy;
}

function putBack(place: Place, copy: string): void {
  for (const suffix of ["-wal", "-shm", ""]) renameSync(`${place.path}${suffix}`, `${place.folder}/old.db${suffix}`);
  copyFileSync(copy, place.path);
}

test("C8: an older copy of the file is restored under a living worker: no (epoch, fence) is issued twice", async (t) => {
  const place = new Place(t);
  const before = await place.engine();
  const { id } = await before.enqueue(slow, { ms: 600_000 }, { delay: "200ms" });
  const old = place.child();
  await old.untilFact("working");
  const copy = copyOf(place, "copy.db");
  const first = await old.untilFact("started", { id });
  const claimed = (await before.get(id))!;
  await before.close({ grace: "0ms" });
  putBack(place, copy);
  const next = place.child();
  const again = await next.untilFact("started", { id });
  const reclaimed = await untilTrue(
    () => place.engine().then((engine) => engine.get(id)),
    (job) => job!.state === "running",
    "it runs again",
  );
  assert.notDeepEqual(
    [reclaimed!.epoch, again["fence"]],
    [claimed.epoch, first["fence"]],
    "two attempts with the same authority",
  );
  assert.ok(
    reclaimed!.epoch > claimed.epoch,
    `the epoch is ${reclaimed!.epoch}, and ${claimed.epoch} was issued before`,
  );
});

test("C8: a worker whose file was moved away stops at once and says so", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  const old = place.child();
  await old.untilFact("started", { id });
  await engine.close({ grace: "0ms" });
  const copy = copyOf(place, "copy.db");
  putBack(place, copy);
  const told = await old
    .until(
      ({ fact, event }) =>
        fact === "event" && ["store.replaced", "store.failed"].includes((event as { name: string }).name),
      "it notices",
    )
    .catch(() => null);
  const event = told?.["event"] as { name: string; why?: string } | undefined;
  assert.equal(event?.name, "store.replaced");
  assert.match(event.why!, /its file was moved or removed|another file was put in the place of its own/);
  const aborted = await old.untilFact("aborted", { id });
  assert.equal(aborted["why"], "lease-lost");
});

test("C8: recover --restored takes the jobs of a restored copy, although the lock of the old worker is held", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  const old = place.child();
  await old.untilFact("started", { id });
  const copy = copyOf(place, "copy.db");
  await freezeOutsideOfAWrite(engine, old.pid);
  await engine.close({ grace: "0ms" });
  putBack(place, copy);
  await using operator = await attach(place.url, { logger: false });
  await assert.doesNotReject(operatorOf(operator).recover({ restored: true }));
  assert.equal((await operator.get(id))?.state, "queued");
});

test("C8: outlive work ends with an exit code when its file was replaced", async (t) => {
  const fleet = new Fleet(t);
  const supervised = fleet.work({ args: ["--processes", "2"] });
  await supervised.working(2);
  const copy = copyOf(fleet.place, "copy.db");
  putBack(fleet.place, copy);
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<null>((resolve) => (timer = setTimeout(() => resolve(null), 15_000)));
  const exit = await Promise.race([supervised.exited, late]);
  clearTimeout(timer);
  assert.deepEqual(exit, { code: 1, signal: null });
  const said = supervised.lines.map(({ message }) => message).join("\n");
  assert.match(said, /store is not the one that (it|this worker) registered with|is not the file that was opened/);
});
