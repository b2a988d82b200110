// A store in the shape that Redis asks for, before any Redis exists: every verb of the port is one atomic call, a failing one is not rolled
// back, there is no transaction with user code, and the latest calls can be lost (`AtomicServer.loseSuffix`). Several connections share
// one server.
import type { AuditEntry } from "../../../src/job/audit.ts";
import type { JobKey, KeyLimit, KeyPause } from "../../../src/job/limits.ts";
import { BY_HAND } from "../../../src/job/transitions.ts";
import type { CancelOptions, Store } from "../../../src/stores/port.ts";
import { observed } from "../../../src/stores/observed.ts";
import type { AtomicServer } from "./atomic-server.ts";
import * as attempts from "./attempts.ts";
import * as batches from "./batches.ts";
import * as looking from "./looking.ts";
import { enqueue } from "./enqueue.ts";
import { keyStates, pauseKey, setLimit } from "./keys.ts";
import { audit, readAudit } from "./audit.ts";
import * as operating from "./operating.ts";
import { Data } from "./records.ts";
import * as schedules from "./schedules.ts";
import * as recovering from "./recovering.ts";
import { outcomes, sendSignal } from "./waits.ts";
import {
  beat,
  begin,
  hasBegun,
  leave,
  listWorkers,
  noteDeath,
  noticeRestore,
  raiseEpoch,
  register,
  resolveLoss,
  seenOf,
  type Seen,
} from "./workers.ts";

type Script<Args extends readonly unknown[], Answer> = (data: Data, ...args: Args) => Answer;
type Verb<Args extends readonly unknown[], Answer> = (...args: Args) => Promise<Answer>;

/** The answer to a write in a run of the server that it did not begin with. Nothing was written. */
const REFUSED = "";

/** A connection of one process. */
export function atomicStore(server: AtomicServer): Store {
  /** All that a connection remembers. Nothing of it decides anything but the first epoch of a run (`begin`). */
  let seen: Seen = { run: null, epoch: 0, writes: 0 };

  function call<Args extends readonly unknown[], Answer>(
    script: Script<Args, Answer>,
    writes: boolean,
  ): Verb<Args, Answer> {
    return async (...args) => {
      const said = JSON.stringify(args);
      const run = (): string =>
        server.eval(script.name, (keys) => {
          const data = new Data(keys);
          if (writes && !hasBegun(data)) return REFUSED;
          const answer = script(data, ...(JSON.parse(said) as Args));
          if (keys.wrote) data.putMeta({ writes: data.meta().writes + 1 });
          return JSON.stringify({ answer, seen: seenOf(data) });
        });
      let told = run();
      // Another run of the server: as with a script that a restarted Redis does not know, the epoch rises before the call is made again.
      for (; told === REFUSED; told = run()) {
        const before = JSON.stringify(seen);
        server.eval("begin", (keys) => {
          begin(new Data(keys), JSON.parse(before) as Seen);
          return "";
        });
      }
      const { answer, seen: now } = JSON.parse(told) as { answer: Answer; seen: Seen };
      // Before the first write of a new run the records are those of the former one, and may be behind what this process knows.
      if (writes) seen = { ...now, epoch: Math.max(now.epoch, seen.epoch) };
      return answer;
    };
  }
  const writing = <Args extends readonly unknown[], A>(script: Script<Args, A>): Verb<Args, A> => call(script, true);
  const reading = <Args extends readonly unknown[], A>(script: Script<Args, A>): Verb<Args, A> => call(script, false);

  const channel = {
    notify: () => server.publish(channel),
    onWakeup: (listener: (what: "wake") => void) => server.subscribe(channel, () => listener("wake")),
  };
  return observed(
    {
      name: "atomic",
      declare: writing(attempts.declare),
      enqueue: writing(enqueue),
      register: writing(register),
      turn: writing(attempts.turn),
      write: writing(attempts.write),
      beat: writing(beat),
      leave: writing(leave),
      workers: reading(listWorkers),
      condemn: writing(recovering.condemn),
      heldBy: reading(recovering.heldBy),
      takeBack: writing(recovering.takeBack),
      purge: writing(looking.purge),
      close: async () => {},
      inspect: {
        get: reading(looking.getJob),
        outcomes: reading(outcomes),
        list: reading(looking.listJobs),
        counts: reading(looking.counts),
        isLimited: reading(looking.isLimited),
        ahead: reading(looking.ahead),
        keys: reading(keyStates),
        audit: reading(readAudit),
        suspects: reading(looking.heldSuspects),
        writer: async () => null,
        incidents: reading(looking.incidents),
        incident: reading(looking.incident),
        latestRecovery: reading(looking.latestRecovery),
        health: reading(looking.health),
      },
      operate: {
        cancel: writing((data: Data, id: string, actor: string, options?: CancelOptions | null) =>
          looking.applyByHand(data, id, BY_HAND.cancel, actor, options),
        ),
        retry: writing((data: Data, id: string, actor: string) => looking.applyByHand(data, id, BY_HAND.retry, actor)),
        signal: writing(sendSignal),
        setLimit: writing((data: Data, key: JobKey, own: KeyLimit | null, entry?: AuditEntry | null) => {
          setLimit(data, key, own);
          audit(data, entry, 1);
        }),
        pauseKey: writing((data: Data, key: JobKey, pause: KeyPause | null, entry?: AuditEntry | null) => {
          pauseKey(data, key, pause);
          audit(data, entry, 1);
        }),
        change: writing(operating.changeJobs),
        setPaused: writing(operating.setPaused),
        noteDeath: writing(noteDeath),
      },
      batches: {
        open: writing(batches.openBatch),
        append: writing(batches.append),
        seal: writing(batches.seal),
        abort: writing(batches.abort),
        tend: writing(batches.tend),
        get: reading(batches.getBatches),
        list: reading(batches.listBatches),
        fold: writing(batches.fold),
        finish: writing(batches.finish),
        failures: reading(batches.failures),
        blocks: reading(batches.keptBlocks),
        outputs: reading(batches.outputPage),
        outputFiles: reading(batches.outputFiles),
        setOutputs: writing(batches.setOutputs),
        reopen: writing(batches.reopen),
        purge: writing(batches.purgeBatches),
      },
      schedules: {
        due: reading(schedules.dueSchedules),
        fire: writing(schedules.fireSchedules),
        write: writing(schedules.writeSchedule),
        remove: writing(schedules.removeSchedule),
        get: reading(schedules.getSchedule),
        list: reading(schedules.listSchedules),
        occurrences: reading(schedules.occurrences),
        fired: reading(schedules.firedJobs),
        declare: writing(schedules.declareSchedules),
        declared: reading(schedules.declaredSchedules),
        noteZoneData: writing(schedules.noteZoneData),
        review: reading(schedules.reviewSchedules),
        now: reading(schedules.scheduleClock),
      },
      losses: {
        open: reading(recovering.openLosses),
        resolve: writing(resolveLoss),
        jobs: reading(recovering.lostJobs),
        judge: writing(recovering.judge),
      },
      upkeep: {
        raiseEpoch: writing(raiseEpoch),
        noticeRestore: writing(noticeRestore),
        integrity: reading(looking.integrity),
        // Nothing of what it finds can be put right without losing something.
        repair: reading(looking.integrity),
      },
    },
    { wakeups: channel },
  );
}
