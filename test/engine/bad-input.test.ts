// Bad input gets a clear error and nothing is lost: a stable code, a message that names the job or the file and the next thing
// to do, and a store in which everything that was accepted is still there.
import assert from "node:assert/strict";
import { chmodSync, chownSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import * as z from "zod";
import { type Engine, ErrorCode, job, type Json, open } from "../../src/index.ts";
import { Place, untilState } from "../support/processes.ts";
import { AT_ONCE, memory, PATIENT, raw, replaceInput, says, script } from "./engines.ts";

const count = async (engine: Engine): Promise<number> => (await engine.list({ limit: 1000 })).jobs.length;

// ---- kinds and inputs

test("a kind that was not passed to open is refused, and so is another contract of the same name", async (t) => {
  const known = job<number>("known");
  const engine = await memory(t, [known]);
  await assert.rejects(
    engine.enqueue(job<number>("unknown"), 1),
    says(ErrorCode.kindUnknown, '"unknown"', "known: known", "Nothing was enqueued. Pass the job to `open`"),
  );
  await assert.rejects(engine.enqueue(job<number>("known"), 1), says(ErrorCode.kindUnknown));
  await assert.rejects(engine.enqueue(undefined as never, 1), says(ErrorCode.kindUnknown));
  await assert.rejects(engine.enqueueMany(job<number>("unknown"), [1]), says(ErrorCode.kindUnknown));
  assert.equal(await count(engine), 0);
});

test("an input that does not fit its schema is refused with the path of what is wrong", async (t) => {
  const bill = job("bill", { input: z.object({ lines: z.array(z.object({ cents: z.int().min(1) })) }) });
  const engine = await memory(t, [bill]);
  await assert.rejects(engine.enqueue(bill, { lines: [{ cents: 5 }, { cents: 0.5 }] }), (thrown) => {
    says(ErrorCode.inputInvalid, "the schema of bill", "lines.1.cents", "Nothing was enqueued")(thrown);
    assert.equal((thrown as { data: { kind: string } }).data.kind, "bill");
    return true;
  });
  assert.equal(await count(engine), 0);
});

test("a misspelt option is named with the one that was meant, and nothing happens", async (t) => {
  const mail = job<number>("mail");
  const engine = await memory(t, [mail]);
  assert.throws(
    () => job("a", { timout: "5m" } as never),
    says(ErrorCode.optionInvalid, "timout is not an option; did you mean timeout?"),
  );
  assert.throws(
    () => job("a", { retry: { attempt: 3 } } as never),
    says(ErrorCode.optionInvalid, "retry.attempt is not an option; did you mean attempts?"),
  );
  assert.throws(
    () => job("a", { colour: "red" } as never),
    says(ErrorCode.optionInvalid, "colour is not an option; there are input,"),
  );
  await assert.rejects(
    engine.enqueue(mail, 1, { dedupkey: "x" } as never),
    says(ErrorCode.optionInvalid, "dedupkey is not an option of enqueue. No job of mail was enqueued.", "dedupeKey?"),
  );
  await assert.rejects(
    engine.enqueueMany(mail, [1], { delay: "5m" } as never),
    says(
      ErrorCode.optionInvalid,
      "delay is not an option of enqueueMany. No job of mail was enqueued.",
      "each: (input)",
    ),
  );
  await assert.rejects(
    engine.start({ only: [job("other")] }),
    says(
      ErrorCode.kindUnknown,
      'The option only names "other"',
      "Pass the job to open() in `jobs` as well. It has mail.",
    ),
  );
  await assert.rejects(
    engine.start({ only: ["mail"] as never }),
    says(ErrorCode.optionInvalid, 'only contains the text "mail"', "only: [mail]"),
  );
  assert.equal(await count(engine), 0);
});

test("a folder as a store is refused as what it is", async (t) => {
  const place = new Place(t);
  mkdirSync(place.folder, { recursive: true });
  await assert.rejects(
    open(`sqlite:${place.folder}`),
    says(ErrorCode.storeUnusable, "is a folder", "Name a file in it"),
  );
});

/** Objects in objects: `levels` of them. */
function nested(levels: number): Json {
  let value: Json = { end: true };
  for (let level = 1; level < levels; level++) value = { a: value };
  return value;
}

test("an input of exactly 1 MiB is taken, one byte more is refused, counted in bytes and not in characters", async (t) => {
  const note = job<string>("note");
  const engine = await memory(t, [note]);
  const most = 1_048_576 - 2;
  const { id } = await engine.enqueue(note, "x".repeat(most));
  assert.equal(((await engine.get(id))!.input as string).length, most);
  for (const text of ["x".repeat(most + 1), "\u{1f600}".repeat(262_144), "é".repeat(524_288)])
    await assert.rejects(
      engine.enqueue(note, text),
      says(ErrorCode.notJson, "The input of note has", "at most 1048576 are allowed", "pass its address"),
    );
  assert.equal(await count(engine), 1);
});

test("64 levels are taken, 65 are refused, and so is what holds itself", async (t) => {
  const note = job<Json>("note");
  const engine = await memory(t, [note]);
  await engine.enqueue(note, nested(64));
  await assert.rejects(engine.enqueue(note, nested(65)), says(ErrorCode.notJson, "more than 64 levels", "$.a.a"));
  const cycle: { [key: string]: Json } = {};
  cycle["itself"] = cycle;
  await assert.rejects(engine.enqueue(note, cycle), says(ErrorCode.notJson, "more than 64 levels"));
  assert.equal(await count(engine), 1);
});

test("a key named __proto__ is refused wherever it is, and a stored one does not reach a handler", async (t) => {
  const place = new Place(t);
  let ran = 0;
  const note = job<Json>("note", { retry: { attempts: 1 } }).handle(() => void ran++);
  const engine = await place.engine({ jobs: [note], heartbeat: {} });
  await assert.rejects(
    engine.enqueue(note, JSON.parse('{"a":[{"__proto__":{"admin":true}}]}') as Json),
    says(ErrorCode.notJson, "a key named __proto__ at $.a[0]"),
  );
  assert.equal(await count(engine), 0);
  const { id } = await engine.enqueue(note, {});
  replaceInput(raw(t, place.path), id, '{"__proto__":{"admin":true}}');
  await engine.start();
  await untilState(engine, id, "dead");
  assert.equal(ran, 0);
  assert.match(
    (await engine.get(id))!.error!.message,
    new RegExp(`The input of job ${id} contains a key named __proto__`),
  );
});

class Money {
  readonly cents = 5;
}
const notJson: [string, unknown, string][] = [
  ["a Date", new Date(), "a Date at $"],
  ["a date that is none", { at: new Date(Number.NaN) }, "a Date at $.at"],
  ["a Buffer", { file: Buffer.from("x") }, "a Buffer at $.file"],
  ["a Map", [new Map()], "a Map at $[0]"],
  ["a class", { price: new Money() }, "a Money at $.price"],
  ["a bigint", { n: 1n }, "a bigint at $.n"],
  ["a function", { f: () => 1 }, "a function at $.f"],
  ["a symbol", [Symbol("s")], "a symbol at $[0]"],
  ["NaN", { deep: [{ n: Number.NaN }] }, "NaN at $.deep[0].n"],
  ["Infinity", Number.POSITIVE_INFINITY, "Infinity at $"],
  ["a hole in an array", [1, undefined, 3], "undefined at $[1]"],
  ["something with toJSON", { toJSON: () => 1 }, "a function at $.toJSON"],
];

for (const [what, value, said] of notJson)
  test(`an input that holds ${what} is refused with its path`, async (t) => {
    const note = job<Json>("note");
    const engine = await memory(t, [note]);
    await assert.rejects(
      engine.enqueue(note, value as Json),
      says(ErrorCode.notJson, "The input of note contains", said, "turn dates into text or milliseconds"),
    );
    assert.equal(await count(engine), 0);
  });

test("a step result or a progress that JSON can't carry fails the attempt with the name of job and step, and is not kept", async (t) => {
  const errors: unknown[] = [];
  const note = job<null>("note").handle(async (_, run) => {
    const bad = { at: new Date() } as unknown as Json;
    await run.step("render", () => bad).catch((thrown: unknown) => errors.push(thrown));
    await run.progress(bad).catch((thrown: unknown) => errors.push(thrown));
    await run.step("big", () => "x".repeat(2_000_000)).catch((thrown: unknown) => errors.push(thrown));
  });
  const engine = await memory(t, [note]);
  const { id } = await engine.enqueue(note, null);
  await engine.runUntilIdle();
  assert.equal(errors.length, 3);
  says(ErrorCode.notJson, `The result of step "render" of job ${id} contains a Date at $.at`)(errors[0]);
  says(ErrorCode.notJson, `The progress of job ${id}`)(errors[1]);
  says(ErrorCode.notJson, `The result of step "big" of job ${id}`, "1048576")(errors[2]);
  const { steps, progress } = (await engine.get(id))!;
  assert.deepEqual([steps, progress], [[], null]);
});

test("a stored input that is not JSON ends that job with a reason and stops no other", async (t) => {
  const place = new Place(t);
  const ran: number[] = [];
  const note = job<number>("note").handle((n) => void ran.push(n));
  const engine = await place.engine({ jobs: [note], heartbeat: {} });
  const { id: broken } = await engine.enqueue(note, 1, { priority: 5 });
  const { id: empty } = await engine.enqueue(note, 2, { priority: 5 });
  const { id: fine } = await engine.enqueue(note, 3);
  const db = raw(t, place.path);
  replaceInput(db, broken, "{broken");
  replaceInput(db, empty, "");
  await engine.start();
  await untilState(engine, fine, "succeeded");
  for (const id of [broken, empty]) {
    await untilState(engine, id, "dead");
    const { lastOutcome, error, history, counters } = (await engine.get(id))!;
    assert.equal(lastOutcome, "rejected");
    assert.match(error!.message, new RegExp(`The input of job ${id} is stored as a text that is not JSON`));
    assert.match(history[0]!.reason, /its stored input was refused/);
    assert.equal(counters.errors, 0);
  }
  assert.equal((await engine.get(broken))?.input, "{broken", "what is stored is shown as it is");
  assert.deepEqual(ran, [3]);
});

// ---- ids, keys and times

const badKeys: [string, unknown][] = [
  ["NUL", "a\0b"],
  ["a line break", "a\nb"],
  ["an escape", "\u001b[31m"],
  ["a C1 control", "a\u0085b"],
  ["DEL", "a\u007f"],
  ["half a surrogate pair", "a\ud800"],
  ["nothing", ""],
  ["256 characters", "x".repeat(256)],
  ["a number", 7],
  ["null", null],
];

for (const [what, key] of badKeys)
  test(`an id, dedupe key, kind or step name of ${what} is refused`, async (t) => {
    const errors: unknown[] = [];
    const note = job<null>("note").handle(async (_, run) => {
      await run.step(key as string, () => 1).catch((thrown: unknown) => errors.push(thrown));
      try {
        run.key(key as string);
      } catch (thrown) {
        errors.push(thrown);
      }
    });
    const engine = await memory(t, [note]);
    const given = (options: object): Promise<unknown> => engine.enqueue(note, null, options);
    await assert.rejects(given({ id: key }), says(ErrorCode.keyInvalid, "The id of a note job", "printable"));
    await assert.rejects(given({ dedupeKey: key }), says(ErrorCode.keyInvalid, "The dedupe key of a note job"));
    assert.throws(() => job(key as string), says(ErrorCode.keyInvalid, "The kind"));
    for (const ask of [
      () => engine.get(key as string),
      () => engine.cancel(key as string),
      () => engine.retry(key as string),
    ])
      await assert.rejects(ask(), says(ErrorCode.keyInvalid, "The job's id"));
    assert.equal(await count(engine), 0);
    const { id } = await engine.enqueue(note, null);
    await engine.runUntilIdle();
    says(ErrorCode.keyInvalid, `The step name of job ${id}`)(errors[0]);
    says(ErrorCode.keyInvalid, `The key name of job ${id}`)(errors[1]);
    assert.deepEqual((await engine.get(id))?.steps, []);
  });

test("keys of 255 characters of any script are taken and come back the same", async (t) => {
  const note = job<null>("note");
  const engine = await memory(t, [note]);
  for (const key of ["é".repeat(255), "order/42 #ü \u{1f600}", "'; DROP TABLE outlive_jobs; --", " ", "__proto__"]) {
    const { id } = await engine.enqueue(note, null, { id: key, dedupeKey: key });
    const stored = (await engine.get(id))!;
    assert.deepEqual([stored.id, stored.dedupeKey], [key, key]);
  }
});

test("a kind is a name: letters, digits and a few signs", () => {
  for (const name of ["a b", "-a", "a;b", "ä", "x".repeat(129), "../a", "a\\b", "a'b"])
    assert.throws(() => job(name), says(ErrorCode.keyInvalid, JSON.stringify(name), "letters, digits"));
  for (const name of ["a", "mail.send", "v2:mail/send_now-1", "x".repeat(128)]) assert.equal(job(name).name, name);
});

test("a runAt that is not a date and a delay that is not a duration are refused", async (t) => {
  const note = job<null>("note");
  const engine = await memory(t, [note]);
  for (const runAt of [new Date(Number.NaN), new Date("31 February at noon"), "2027-01-01", 0, null])
    await assert.rejects(
      engine.enqueue(note, null, { runAt: runAt as Date }),
      says(ErrorCode.optionInvalid, "runAt", "note", "Pass a valid Date"),
    );
  for (const delay of ["soon", "-1s", "1 s", 5, "5000d", "1e3s", ""])
    await assert.rejects(
      engine.enqueue(note, null, { delay: delay as "1s" }),
      says(ErrorCode.optionInvalid, "delay of a note job", JSON.stringify(delay)),
    );
  assert.equal(await count(engine), 0);
});

// ---- files

test("a file that is not a database is refused and left as it is", async (t) => {
  const place = new Place(t);
  const text = "This is a letter to my aunt, and not a database.\n".repeat(100);
  writeFileSync(place.path, text);
  await assert.rejects(
    open(place.url, { logger: false }),
    says(ErrorCode.storeUnusable, place.path, "file is not a database", "Use another path"),
  );
  assert.equal(readFileSync(place.path, "utf8"), text);
  assert.deepEqual(readdirSync(place.folder), ["jobs.db"]);
});

test("a directory that does not exist is an error that names the file, and is not made", async (t) => {
  const place = new Place(t);
  const path = join(place.folder, "not", "there", "jobs.db");
  await assert.rejects(
    open(`sqlite:${path}`, { logger: false }),
    says(ErrorCode.storeUnusable, path, "Check that the directory exists"),
  );
  assert.deepEqual(readdirSync(place.folder), []);
});

test("a directory instead of a file is an error that names it", async (t) => {
  const place = new Place(t);
  mkdirSync(place.path);
  await assert.rejects(open(place.url, { logger: false }), says(ErrorCode.storeUnusable, place.path));
});

test("the file and what is next to it can be read by their owner only", async (t) => {
  const place = new Place(t);
  await place.engine();
  assert.equal(statSync(place.path).mode & 0o777, 0o600);
  assert.equal(statSync(`${place.path}.outlive`).mode & 0o777, 0o700);
});

const NOBODY = 65_534;
/** Opens the store in a separate process, as the user `nobody` if we are root: permission bits mean nothing to root. */
async function openedByAnother(url: string, how: "open" | "connect"): Promise<{ code: string; message: string }> {
  const { code, stdout, stderr } = await script(
    `const { open } = await import(SRC + "index.ts");
     const { connect } = await import(SRC + "client.ts");
     const { job } = await import(SRC + "index.ts");
     const note = job("note");
     try {
       const engine = await (ARGS[1] === "open" ? open : connect)(ARGS[0], { jobs: [note] });
       await engine.enqueue(note, 1);
       console.log(JSON.stringify({ code: "it was enqueued", message: "" }));
     } catch (thrown) {
       console.log(JSON.stringify({ code: String(thrown.code), message: thrown.message }));
     }`,
    { args: [url, how], ...(process.getuid?.() === 0 ? { uid: NOBODY } : {}) },
  );
  assert.equal(code, 0, stderr);
  return JSON.parse(stdout) as { code: string; message: string };
}

for (const how of ["open", "connect"] as const)
  test(`a read-only file is refused by ${how} with a code of its own, and what is in it is still there`, async (t) => {
    const place = new Place(t);
    const note = job<number>("note");
    const engine = await open(place.url, { jobs: [note], logger: false });
    const { id } = await engine.enqueue(note, 7);
    await engine.close();
    // The directory and what is next to the file may be written, the file may not.
    for (const [path, mode] of [
      [place.folder, 0o777],
      [`${place.path}.outlive`, 0o777],
      [join(`${place.path}.outlive`, "wakeup"), 0o666],
      [place.path, 0o444],
    ] as const)
      chmodSync(path, mode);
    const { code, message } = await openedByAnother(place.url, how);
    assert.equal(code, ErrorCode.storeReadOnly, message);
    assert.match(message, /Nothing was written\. Give this user write permission/);
    chmodSync(place.path, 0o600);
    assert.equal((await (await place.engine({ jobs: [note] })).get(id))?.input, 7);
  });

test("a read-only directory is refused: without a file, and with one that may be written itself", async (t) => {
  const place = new Place(t);
  chmodSync(place.folder, 0o555);
  const without = await openedByAnother(place.url, "open");
  assert.equal(without.code, ErrorCode.storeUnusable, without.message);
  assert.ok(without.message.includes(place.path), without.message);
  assert.match(without.message, /this user may write to it/);

  chmodSync(place.folder, 0o755);
  const note = job<number>("note");
  const engine = await open(place.url, { jobs: [note], logger: false });
  const { id } = await engine.enqueue(note, 7);
  await engine.close();
  if (process.getuid?.() === 0) chownSync(place.path, NOBODY, NOBODY);
  chmodSync(place.folder, 0o555);
  for (const how of ["open", "connect"] as const) {
    const within = await openedByAnother(place.url, how);
    assert.ok(
      within.code === ErrorCode.storeUnusable || within.code === ErrorCode.storeReadOnly,
      `${within.code}: ${within.message}`,
    );
    assert.match(within.message, /directory/);
  }
  if (process.getuid?.() === 0) chownSync(place.path, 0, 0);
  chmodSync(place.folder, 0o755);
  assert.equal((await (await place.engine({ jobs: [note] })).get(id))?.input, 7);
});

test("a file whose side folder can't be created is refused with a wrapped error", async (t) => {
  const place = new Place(t);
  writeFileSync(`${place.path}.outlive`, "a file where the folder should be");
  await assert.rejects(open(place.url, { logger: false }), says(ErrorCode.storeUnusable, `${place.path}.outlive`));
});

test("a newer schema in the file is refused and nothing is changed", async (t) => {
  const place = new Place(t);
  const note = job<number>("note");
  await (await place.engine({ jobs: [note] })).close();
  const db = raw(t, place.path);
  db.exec("UPDATE outlive_meta SET value = 99 WHERE key = 'schema'");
  const before = db.prepare("SELECT * FROM outlive_meta ORDER BY key").all();
  await assert.rejects(
    open(place.url, { jobs: [note], logger: false }),
    says(ErrorCode.schemaNewer, place.path, "has schema 99", "Upgrade the outlive package", "Nothing was changed"),
  );
  assert.deepEqual(db.prepare("SELECT * FROM outlive_meta ORDER BY key").all(), before);
});

test("a worker that finds a newer schema under it stops, releases what it holds and says why", async (t) => {
  const place = new Place(t);
  const long = job<null>("long", { retry: { backoff: AT_ONCE } }).handle(() => new Promise(() => {}));
  const engine = await place.engine({ jobs: [long], heartbeat: PATIENT });
  const worker = await engine.start();
  const { id } = await engine.enqueue(long, null);
  await untilState(engine, id, "running");
  raw(t, place.path).exec("UPDATE outlive_meta SET value = 99 WHERE key = 'schema'");
  await assert.rejects(
    worker.stopped,
    says(ErrorCode.schemaNewer, "too old", "99", "released what it held", "Upgrade the outlive package"),
  );
  const { state, counters } = (await engine.get(id))!;
  assert.deepEqual([state, counters.interruptions, counters.errors], ["queued", 1, 0]);
});

test("a live worker of another boot on the same file makes this one stop and release what it holds", async (t) => {
  const place = new Place(t);
  const long = job<null>("long").handle(() => new Promise(() => {}));
  const engine = await place.engine({ jobs: [long], heartbeat: PATIENT });
  const { id } = await engine.enqueue(long, null);
  const worker = await engine.start();
  const worked = worker.stopped;
  await untilState(engine, id, "running");
  const db = raw(t, place.path);
  db.exec(`INSERT INTO outlive_workers (id, state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at, counts_rows)
    VALUES ('elsewhere-1', 'live', 'elsewhere', 'another-boot', 1, '0', 0, 60000, 1, '[]', 0, 0, 1)`);
  // The heart of the other machine.
  const heart = setInterval(() => db.exec("UPDATE outlive_workers SET beats = beats + 1 WHERE id = 'elsewhere-1'"), 50);
  t.after(() => clearInterval(heart));
  await assert.rejects(
    worked,
    says(ErrorCode.foreignWorker, "elsewhere-1", "elsewhere", "released what it held", "belongs to one machine"),
  );
  const { state, counters } = (await engine.get(id))!;
  assert.deepEqual([state, counters.interruptions], ["queued", 1]);
  const all = await engine.workers({ which: "all" });
  assert.deepEqual(
    new Map(all.map(({ id: who, state: how }) => [who, how])),
    new Map([
      [worker.id, "stopped"],
      ["elsewhere-1", "live"],
    ]),
  );
});

test("a worker of another boot that does not beat stops no other worker, and is recovered when its lease has expired", async (t) => {
  const place = new Place(t);
  const note = job<null>("note").handle(() => {});
  const engine = await place.engine({ jobs: [note], heartbeat: PATIENT });
  const { id } = await engine.enqueue(note, null, { delay: "1h" });
  raw(t, place.path)
    .exec(`INSERT INTO outlive_workers (id, state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at, counts_rows)
      VALUES ('before-the-reboot', 'live', 'here', 'another-boot', 1, '0', 0, 300, 1, '[]', 0, 0, 1);
    UPDATE outlive_jobs SET state = 1, fence = 1, worker = (SELECT seq FROM outlive_workers) WHERE id = '${id}'`);
  await engine.start();
  await untilState(engine, id, "succeeded");
  const [incident] = await engine.incidents();
  assert.deepEqual([incident?.worker, incident?.how], ["before-the-reboot", "silent"]);
});
