// The scripts of the store: one for each verb, assembled of the parts in lua/. The run of the server is in the text of each: a server process
// that was started since, or a replica that was promoted, does not have them, because scripts are neither persisted nor replicated. So no call
// of a former run can be carried out by accident, and the first caller learns that a new run has begun (connection.ts).
import { createHash } from "node:crypto";
import { EXPIRE } from "../../job/transitions.ts";
import { NEVER_DUE } from "../rows.ts";
import { changeArgs } from "./encoding.ts";
import * as attempts from "./lua/attempts.ts";
import { ADMISSION } from "./lua/admission.ts";
import * as batches from "./lua/batches.ts";
import { BLOCKS } from "./lua/blocks.ts";
import * as collections from "./lua/collections.ts";
import { CHANGES, DRAFTS, FAMILIES, LEASES, WAITS } from "./lua/changes.ts";
import * as features from "./lua/features-integrity.ts";
import * as integrity from "./lua/integrity.ts";
import { KEYS, KEY_FACTS } from "./lua/keys.ts";
import { KEYED, TURN_KEYED } from "./lua/keyed.ts";
import * as operations from "./lua/operations.ts";
import * as reads from "./lua/reads.ts";
import { ENQUEUE_PLAIN, INSERTS, PLAIN, TURN_PLAIN, TURNS } from "./lua/plain.ts";
import { BASE, RECORDS, WORKERS } from "./lua/records.ts";
import * as recovery from "./lua/recovery.ts";
import * as schedules from "./lua/schedules.ts";
import * as staged from "./lua/staged.ts";
import * as workers from "./lua/workers.ts";

/** In the body of a script these stand for parts of lua/, in the order in which they need each other. */
const PARTS = {
  plain: PLAIN,
  inserts: INSERTS,
  turns: TURNS,
  jobs: RECORDS,
  facts: KEY_FACTS,
  keyed: KEYED,
  keys: KEYS,
  admission: ADMISSION,
  blocks: BLOCKS,
  drafts: DRAFTS,
  waits: WAITS,
  changes: CHANGES,
  families: `local EXPIRE = [==[${JSON.stringify(changeArgs(EXPIRE, ""))}]==]\n${FAMILIES}`,
  workers: WORKERS,
  leases: LEASES,
  removal: operations.REMOVAL,
  staged: staged.STAGED,
  indexes: integrity.INDEXES,
} as const;
const ALL = [
  "plain",
  "inserts",
  "turns",
  "jobs",
  "facts",
  "keys",
  "admission",
  "blocks",
  "drafts",
  "waits",
  "changes",
  "families",
  "workers",
  "leases",
] as const;
const REMOVING = [...ALL, "removal", "staged"] as const;
const ENQUEUING = ["plain", "inserts", "jobs", "facts", "keys", "drafts"] as const;
const INSERTING = [...ENQUEUING, "staged"] as const;
const READ = ["plain", "inserts", "jobs", "facts", "keys", "workers"] as const;

interface ScriptFacts {
  readonly parts: readonly (keyof typeof PARTS)[];
  /** no-writes: it reads only. allow-oom: it is also carried out when memory is full, because work has to end and be removed then. */
  readonly flags: "no-writes" | "allow-oom" | "";
  readonly body: string;
  /** It has plain jobs only, and none of the parts that know more. */
  readonly isPlain?: boolean;
  /** It is also carried out while a repair has not come to its end: nothing else may trust the indexes then. */
  readonly duringRepair?: boolean;
  /** Whatever it writes may give workers something to do. Others wake them if they queue a job (lua/records.ts). */
  readonly wakes?: boolean;
}

const reading = (body: string): ScriptFacts => ({ parts: READ, flags: "no-writes", body });
const writing = (body: string): ScriptFacts => ({ parts: ALL, flags: "allow-oom", body });
const adding = (body: string): ScriptFacts => ({ parts: ALL, flags: "", body });
const waking = (facts: ScriptFacts): ScriptFacts => ({ ...facts, wakes: true });

const examining = (body: string): ScriptFacts => ({
  parts: [...READ, "indexes"],
  flags: "no-writes",
  body,
  duringRepair: true,
});
const repairing = (body: string): ScriptFacts => ({
  parts: [...ALL, "indexes"],
  flags: "allow-oom",
  body,
  duringRepair: true,
});

const SCRIPTS = {
  declare: waking(adding(attempts.DECLARE)),
  enqueue: { ...waking(adding(attempts.ENQUEUE)), parts: ENQUEUING },
  enqueuePlain: { parts: ["plain", "inserts"], flags: "", body: ENQUEUE_PLAIN, isPlain: true },
  insertPlainStaged: {
    parts: ["plain", "inserts", "staged"],
    flags: "allow-oom",
    body: staged.INSERT_PLAIN_STAGED,
    isPlain: true,
  },
  stage: { ...adding(staged.STAGE), parts: ENQUEUING },
  decideStaged: { ...waking(adding(staged.DECIDE_STAGED)), parts: ENQUEUING },
  decideChildren: waking(adding(staged.DECIDE_CHILDREN)),
  insertChildren: { ...waking(writing(staged.INSERT_STAGED)), parts: [...ALL, "staged"] },
  prepareWait: waking(writing(attempts.PREPARE_WAIT)),
  insertStaged: { ...waking(writing(staged.INSERT_STAGED)), parts: INSERTING },
  forgetStaged: { ...writing(staged.FORGET_STAGED), parts: INSERTING },
  register: adding(workers.REGISTER),
  lead: writing(workers.LEAD),
  turnPlain: { parts: ["plain", "turns", "workers"], flags: "allow-oom", body: TURN_PLAIN, isPlain: true },
  turnKeyed: {
    parts: ["plain", "turns", "workers", "facts", "keyed"],
    flags: "allow-oom",
    body: TURN_KEYED,
    isPlain: true,
  },
  turn: { ...writing(attempts.TURN), parts: [...ALL, "staged"] },
  keepKinds: writing(attempts.KEEP_KINDS),
  settle: waking(writing(attempts.SETTLE)),
  settleAgain: waking(writing(attempts.SETTLE_AGAIN)),
  write: writing(attempts.WRITE),
  beat: writing(workers.BEAT),
  heldLeases: reading(workers.HELD_LEASES),
  leave: writing(workers.LEAVE),
  former: reading(workers.FORMER),
  endFormer: writing(workers.END_FORMER),
  noteDeath: writing(workers.NOTE_DEATH),
  worker: reading(workers.WORKER),
  listWorkers: reading(workers.LIST_WORKERS),
  condemn: writing(recovery.CONDEMN),
  held: reading(recovery.HELD),
  overdue: writing(recovery.OVERDUE),
  takeBack: waking(writing(recovery.TAKE_BACK)),
  purge: { ...writing(operations.PURGE), parts: REMOVING },
  forgetWaits: { ...writing(operations.FORGET_WAITS), duringRepair: true },
  getJob: reading(reads.GET_JOB),
  jobs: reading(reads.JOBS),
  outcomes: reading(reads.OUTCOMES),
  list: reading(reads.LIST),
  counts: reading(reads.COUNTS),
  kindSettings: reading(reads.KIND_SETTINGS),
  ahead: reading(reads.AHEAD),
  suspects: reading(reads.SUSPECTS),
  keyStates: reading(reads.KEY_STATES),
  incidents: reading(reads.INCIDENTS),
  incident: reading(reads.INCIDENT),
  latestRecovery: reading(reads.LATEST_RECOVERY),
  deaths: reading(recovery.DEATHS),
  openLosses: reading(recovery.OPEN_LOSSES),
  resolveLoss: writing(recovery.RESOLVE_LOSS),
  judge: waking(writing(recovery.JUDGE)),
  closeLoss: writing(recovery.CLOSE_LOSS),
  noteJob: writing(recovery.NOTE_JOB),
  change: { ...waking(writing(operations.CHANGE)), parts: REMOVING },
  audit: reading(reads.AUDIT),
  cancel: waking(writing(operations.CANCEL)),
  retry: waking(writing(operations.RETRY)),
  signal: waking(adding(operations.SIGNAL)),
  setLimit: waking(writing(operations.SET_LIMIT)),
  pauseKey: waking(writing(operations.PAUSE_KEY)),
  setPaused: waking(writing(operations.SET_PAUSED)),
  raiseEpoch: writing(operations.RAISE_EPOCH),
  noticeRestore: writing(operations.NOTICE_RESTORE),
  noteLoss: writing(operations.NOTE_LOSS),
  noteResent: writing(operations.NOTE_RESENT),
  pending: reading(reads.PENDING),
  opening: writing(operations.OPENING),
  noteOpening: writing(operations.NOTE_OPENING),
  check: examining(integrity.CHECK),
  sizes: examining(integrity.SIZES),
  checkWorkers: examining(integrity.CHECK_WORKERS),
  extent: examining(integrity.EXTENT),
  liveWorkers: examining(integrity.LIVE_WORKERS),
  repairBegin: repairing(integrity.REPAIR_BEGIN),
  repairClear: repairing(integrity.REPAIR_CLEAR),
  repairClearPages: repairing(integrity.REPAIR_CLEAR_PAGES),
  repairFill: repairing(integrity.REPAIR_FILL),
  repairWorkers: repairing(integrity.REPAIR_WORKERS),
  repairEnd: waking(repairing(integrity.REPAIR_END)),
  checkBatches: examining(features.CHECK_BATCHES),
  scheduleNames: examining(features.SCHEDULE_NAMES),
  scheduleBodies: examining(features.SCHEDULE_BODIES),
  checkSchedules: examining(features.CHECK_SCHEDULES),
  repairBatches: repairing(features.REPAIR_BATCHES),
  repairSchedules: repairing(features.REPAIR_SCHEDULES),
  schedulesDue: reading(schedules.DUE),
  fireSchedules: { ...waking(adding(schedules.FIRE)), parts: ENQUEUING },
  writeSchedule: { ...waking(adding(schedules.WRITE)), parts: ENQUEUING },
  removeSchedule: waking(writing(schedules.REMOVE)),
  getSchedule: reading(schedules.GET),
  listSchedules: reading(schedules.LIST),
  occurrences: reading(schedules.OCCURRENCES),
  firedJobs: reading(schedules.FIRED),
  declareSchedules: writing(schedules.DECLARE_SCHEDULES),
  declaredSchedules: reading(schedules.DECLARED),
  reviewSchedules: reading(schedules.REVIEW),
  scheduleClock: reading(schedules.CLOCK),
  openBatch: adding(batches.OPEN_BATCH),
  appendBlocks: waking(adding(batches.APPEND_BLOCKS)),
  sealBatch: waking(writing(batches.SEAL_BATCH)),
  abortBatch: waking(writing(batches.ABORT_BATCH)),
  tendBatches: writing(batches.TEND_BATCHES),
  foldBatches: writing(batches.FOLD_BATCHES),
  finishBatch: waking(writing(batches.FINISH_BATCH)),
  reopenBatch: waking(adding(batches.REOPEN_BATCH)),
  setOutputs: writing(batches.SET_OUTPUTS),
  purgeBatches: { ...writing(batches.PURGE_BATCHES), parts: REMOVING },
  getBatches: reading(batches.GET_BATCHES),
  listBatches: reading(batches.LIST_BATCHES),
  readBlocks: reading(batches.READ_BLOCKS),
  outputPage: reading(batches.OUTPUT_PAGE),
  outputFiles: reading(batches.OUTPUT_FILES),
  countRows: reading(batches.COUNT_ROWS),
  openCollection: { ...adding(collections.OPEN_COLLECTION), parts: ENQUEUING },
  announce: { ...adding(collections.ANNOUNCE), parts: ENQUEUING },
  putParts: { ...adding(collections.PUT), parts: ENQUEUING },
  stepCollection: { ...writing(collections.STEP), parts: ENQUEUING },
  removeCollection: { ...writing(collections.REMOVE_COLLECTION), parts: ENQUEUING },
  park: { ...writing(collections.PARK), parts: ENQUEUING },
  unpark: { ...writing(collections.UNPARK), parts: ENQUEUING },
  knownParts: reading(collections.KNOWN),
  getCollections: reading(collections.GET_COLLECTIONS),
  listCollections: reading(collections.LIST_COLLECTIONS),
  countCollections: reading(collections.COUNT_COLLECTIONS),
  parts: reading(collections.PARTS),
  missing: reading(collections.MISSING),
  dueCollections: reading(collections.DUE_COLLECTIONS),
  parked: reading(collections.PARKED),
  checkCollections: examining(collections.CHECK_COLLECTIONS),
  checkParked: examining(collections.CHECK_PARKED),
  repairCollections: repairing(collections.REPAIR_COLLECTIONS),
  repairParked: repairing(collections.REPAIR_PARKED),
} as const satisfies Record<string, ScriptFacts>;

export type ScriptName = keyof typeof SCRIPTS;
export const SCRIPT_NAMES = Object.keys(SCRIPTS) as readonly ScriptName[];

export interface Script {
  readonly text: string;
  readonly sha: string;
}

/** How scripts read the time: a Lua function NOW without arguments that returns ms. */
export const SERVER_CLOCK =
  "local function NOW() local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end";

export function scriptsOf(run: string, clock: string): (name: ScriptName) => Script {
  const made = new Map<ScriptName, Script>();
  return (name) => {
    const known = made.get(name);
    if (known) return known;
    const { parts, flags, body, isPlain = false, duringRepair = false, wakes = false }: ScriptFacts = SCRIPTS[name];
    const shebang = flags === "" ? "#!lua" : `#!lua flags=${flags}`;
    const head = `${shebang}\nlocal RUN, REPAIRS, WAKES = '${run}', ${duringRepair}, ${wakes}\n${clock}\n${BASE}\n${parts.map((part) => PARTS[part]).join("\n")}`;
    const text = `${head}\nlocal function main()\n${body}\nend\n${flags === "no-writes" ? READ_TAIL : isPlain ? PLAIN_TAIL : WRITE_TAIL}`;
    const script = { text, sha: createHash("sha1").update(text).digest("hex") };
    made.set(name, script);
    return script;
  };
}

const READ_TAIL = "return {1, call('HGET', T .. 'meta', 'ops'), int(now), int(EPOCH), main()}";
/**
 * Every script that wrote adds one to the operations: a caller that has seen more than there are knows that the store went back. It also wakes workers: a
 * wake-up that belongs to the write is not lost with the process that wrote.
 */
const writeTail = (flush: string): string => `local answer = main()
${flush}
local ops
if wrote then
  ops = call('HINCRBY', T .. 'meta', 'ops', 1)
  call('HSET', T .. 'meta', 'at', int(now))
  wake()
else ops = call('HGET', T .. 'meta', 'ops') end
return {1, ops, int(now), int(EPOCH), answer}`;
const WRITE_TAIL = writeTail("J.flush()\nif B then B.flush() end");
const PLAIN_TAIL = writeTail("if Q.flushInputs then Q.flushInputs() end\nR.flush()");

/** Present in the server process in which this run was begun, and in no other. */
export function runMark(run: string): Script {
  const text = `return 'outlive run ${run}'`;
  return { text, sha: createHash("sha1").update(text).digest("hex") };
}

/** A write of no meaning, of this run. Loaded only where that run is. */
export function confirmingWrite(run: string): Script {
  const text = `#!lua flags=allow-oom\n-- ${run}\nreturn redis.call('INCR', KEYS[1] .. 'sync')`;
  return { text, sha: createHash("sha1").update(text).digest("hex") };
}

/**
 * Begins a run of the server: the epoch rises above all that this caller knows of, and the workers of the former run are not live any more. If the
 * store went back, their rows count as restored: `lost` operations that the caller knows of are missing, or the latest write is older than
 * any pause of a working store.
 */
export function beginText(clock: string): string {
  return `#!lua flags=allow-oom
${clock}
${BEGIN}`;
}

/**
 * What layout 3 has more than layout 2, from what is there: counts of all kinds in one hash, and kinds by their first ready job, with suspects, and paused. Of 250 kinds
 * from a number on; returns where it goes on, or nothing if that was all. 1,000 of them took 16 ms. From its first piece on older programs are refused, as during a
 * repair: they would change what it has read. The run that is begun next ends that, and gives the store its layout.
 */
export const LAYOUT_FROM_2 = /* lua */ `#!lua flags=allow-oom
local T, call, from = KEYS[1], redis.call, tonumber(ARGV[1])
local function int(x) return string.format('%.0f', x) end
if call('HGET', T .. 'meta', 'schema') ~= '2' then return '' end
call('HSETNX', T .. 'meta', 'repair', 'layout')
local last = tonumber(call('HGET', T .. 'meta', 'kinds') or 0)
for n = from, math.min(last, from + 249) do
  local k = int(n)
  local v = call('HMGET', T .. 'k:' .. k, 'jobs', 'rd', 'rn', 'paused', 'pauseUntil')
  for i, name in ipairs({'jobs:', 'rd:', 'rn:'}) do if v[i] then call('HSET', T .. 'kc', name .. k, v[i]) end end
  call('HDEL', T .. 'k:' .. k, 'jobs', 'rd', 'rn')
  if v[4] == '1' then call('ZADD', T .. 'kp', (v[5] or '') ~= '' and v[5] or '${NEVER_DUE}', k) end
  local chunk = call('ZRANGE', T .. 'r:' .. k, 0, 0)[1]
  if chunk then call('ZADD', T .. 'rk', int(tonumber(chunk) * 256 + string.byte(call('HGET', T .. 'rs:' .. k, chunk))), k) end
  if call('EXISTS', T .. 'u:' .. k) == 1 then call('SADD', T .. 'uk', k) end
end
return from + 250 <= last and int(from + 250) or ''
`;

const BEGIN = /* lua */ `
local T, A, call = KEYS[1], ARGV, redis.call
local function int(x) return string.format('%.0f', x) end
local now = NOW()
local m = call('HMGET', T .. 'meta', 'run', 'epoch', 'runs', 'ops', 'at', 'restored', 'schema')
if (m[1] or '') ~= A[1] then return {0, m[1] or ''} end
local isNew = not m[1]
if isNew then call('HSET', T .. 'meta', 'id', A[6], 'schema', A[7], 'row', 0) end
local isOlder = not isNew and m[7] == '2'
if isOlder then
  call('HSET', T .. 'meta', 'schema', A[7])
  if call('HGET', T .. 'meta', 'repair') == 'layout' then call('HDEL', T .. 'meta', 'repair') end
end
local epoch, runs, ops, last = tonumber(m[2] or 0), tonumber(m[3] or 0), tonumber(m[4] or 0), tonumber(m[5] or now)
local seenRuns, seenOps, seenEpoch = tonumber(A[3]), tonumber(A[4]), tonumber(A[5])
-- The beginning of a run that this store has not is lost, too.
local lost = not isNew and seenRuns >= runs and math.max(A[9] == '1' and 1 or 0, seenOps - ops) or 0
if not isNew then runs = math.max(runs, seenRuns) end
local gap = now - last
local why = isOlder and 'the store got the layout of a newer version' or 'the server started again or another one took over'
if lost > 0 then why = why .. ', and ' .. int(lost) .. ' operation(s) that this process knew of are missing' end
if gap > ${600_000} then why = why .. ', and its latest write is ' .. int(gap) .. ' ms old' end
local restored = tonumber(m[6] or 0)
if lost > 0 or gap > ${600_000} then restored = runs + 1 end
call('HSET', T .. 'meta', 'run', A[2], 'former', A[1], 'server', A[8], 'runs', int(runs + 1), 'epoch', int(math.max(epoch + 1, seenEpoch + 1, now)), 'begun', int(ops), 'begunAt', isNew and 0 or int(now),
  'ops', int(math.max(ops, seenOps) + 1), 'at', int(now), 'restored', int(restored), 'lost', int(lost), 'why', why, 'unreported', isNew and '' or why,
  'unopened', isNew and '' or '1', 'jobsAgain', 0, 'endsAgain', 0)
return {1, A[2]}
`;
