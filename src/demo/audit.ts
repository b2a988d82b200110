// The audit: holds what was promised against what is in the file. Each check is one sentence about the data, the SQL that finds
// what breaks it, and the words for each row that does. It needs nothing of the run but the ids whose enqueue resolved.
import type { Engine } from "../index.ts";
import { BANK, OPENING_BALANCE } from "./bank.ts";
import { jobStates, number, rows } from "./facts.ts";
import { POISON_ID } from "./jobs.ts";

export interface Verdict {
  readonly title: string;
  /** One sentence for every row that breaks it; none: it holds. */
  readonly violations: readonly string[];
}

export interface Audit {
  readonly enqueued: number;
  readonly succeeded: number;
  /** Promised and not there, or there and not ended. */
  readonly lost: number;
  /** Transfers with more than one row in the ledger. */
  readonly committedTwice: number;
  readonly quarantined: number;
  /** Poison jobs that were planted. */
  readonly poison: number;
  readonly ledgerRows: number;
  readonly balance: number;
  readonly verdicts: readonly Verdict[];
}

const STATE = ["queued", "running", "succeeded", "dead", "cancelled", "quarantined"];
const ENDED = 2;

interface Check {
  readonly title: string;
  readonly sql: string;
  readonly say: (row: Record<string, string | number>) => string;
}

const TWICE =
  "SELECT job_id, count(*) AS times, group_concat(attempt) AS attempts FROM ledger GROUP BY job_id HAVING count(*) > 1";

const CHECKS: readonly Check[] = [
  {
    title: "every job has ended, and nothing is running",
    sql: "SELECT j.id, j.state, w.id AS worker FROM outlive_jobs j LEFT JOIN outlive_workers w ON w.seq = j.worker WHERE j.state < 2",
    say: ({ id, state, worker }) =>
      `job ${id} has not ended: it is ${STATE[Number(state)]}, its last worker was ${worker}`,
  },
  {
    title: "no job left an end that it had reached",
    sql: "SELECT j.id, h.event, h.actor, h.from_state FROM outlive_history h JOIN outlive_jobs j ON j.seq = h.job WHERE h.from_state >= 2 AND h.to_state <> h.from_state",
    say: ({ id, event, actor, from_state }) =>
      `job ${id} was ${STATE[Number(from_state)]} already when ${actor} wrote "${event}"`,
  },
  {
    title: "each job ended once",
    // A success leaves no history row, every other end leaves one.
    sql: `SELECT j.id, j.state, count(h.ord) AS ends FROM outlive_jobs j
          LEFT JOIN outlive_history h ON h.job = j.seq AND h.from_state < 2 AND h.to_state >= 2
          WHERE j.state >= 2 GROUP BY j.seq HAVING count(h.ord) <> (CASE j.state WHEN 2 THEN 0 ELSE 1 END)`,
    say: ({ id, state, ends }) =>
      `job ${id} is ${STATE[Number(state)]}, and its history has ${ends} ends beside a success`,
  },
  {
    title: "no transfer is in the ledger twice",
    sql: TWICE,
    say: ({ job_id, times, attempts }) => `job ${job_id} is in the ledger ${times} times (attempts ${attempts})`,
  },
  {
    title: "every transfer that succeeded is in the ledger",
    sql: `SELECT j.id FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind
          WHERE j.state = 2 AND k.name <> 'poison' AND j.id NOT IN (SELECT job_id FROM ledger)`,
    say: ({ id }) => `job ${id} succeeded, but its row is not in the ledger`,
  },
  {
    title: "nothing else is in the ledger",
    sql: "SELECT l.job_id, j.state FROM ledger l LEFT JOIN outlive_jobs j ON j.id = l.job_id WHERE j.state IS NULL OR j.state <> 2",
    say: ({ job_id, state }) =>
      `job ${job_id} is in the ledger, but it is ${state === null ? "no job" : STATE[Number(state)]}`,
  },
  {
    title: "each row of the ledger says what its job was told",
    sql: `SELECT l.job_id FROM ledger l JOIN outlive_jobs j ON j.id = l.job_id
          WHERE json_extract(j.input, '$.from') <> l.from_account OR json_extract(j.input, '$.to') <> l.to_account
             OR json_extract(j.input, '$.amount') <> l.amount`,
    say: ({ job_id }) => `job ${job_id} moved something else than its input says`,
  },
  {
    title: "the sum of the accounts is what it was",
    sql: `SELECT now, was FROM (SELECT sum(balance) AS now, count(*) * ${OPENING_BALANCE} AS was FROM accounts) AS sums WHERE now <> was`,
    say: ({ now, was }) => `the accounts hold ${money(Number(now))}; they began with ${money(Number(was))}`,
  },
  {
    title: "each account holds what the ledger says",
    sql: `SELECT a.id, a.balance, ${OPENING_BALANCE} + coalesce(m.net, 0) AS due FROM accounts a LEFT JOIN
            (SELECT account, sum(change) AS net FROM
               (SELECT from_account AS account, -(amount + fee) AS change FROM ledger UNION ALL
                SELECT to_account, amount FROM ledger UNION ALL
                SELECT ${BANK}, fee FROM ledger) AS moves GROUP BY account) m ON m.account = a.id
          WHERE a.balance <> ${OPENING_BALANCE} + coalesce(m.net, 0)`,
    say: ({ id, balance, due }) =>
      `account ${id} holds ${money(Number(balance))}; its ledger makes ${money(Number(due))}`,
  },
  {
    title: "only the poison job is in quarantine, and no job is dead or cancelled",
    sql: `SELECT j.id, j.state, (SELECT reason FROM outlive_history h WHERE h.job = j.seq AND h.to_state = j.state ORDER BY h.ord DESC LIMIT 1) AS reason
          FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind
          WHERE (k.name <> 'poison' AND j.state > 2) OR (k.name = 'poison' AND j.state <> 5)`,
    say: ({ id, state, reason }) => `job ${id} is ${STATE[Number(state)]}${reason === null ? "" : `: ${reason}`}`,
  },
  {
    title: "each death has one incident",
    sql: "SELECT worker, count(*) AS incidents FROM outlive_incidents GROUP BY worker HAVING count(*) > 1",
    say: ({ worker, incidents }) => `the death of worker ${worker} has ${incidents} incidents`,
  },
  {
    title: "every worker has left or was recovered",
    sql: "SELECT id, state FROM outlive_workers WHERE state IN ('live', 'recovering')",
    say: ({ id, state }) => `worker ${id} is still called ${state}, and no process is left`,
  },
];

export async function audit(engine: Engine, promised: readonly string[]): Promise<Audit> {
  const states = new Map((await jobStates(engine)).map(({ id, state }) => [id, state]));
  const missing = promised.filter((id) => !states.has(id));
  const unfinished = promised.filter((id) => (states.get(id) ?? ENDED) < ENDED);
  const verdicts: Verdict[] = [
    {
      title: "every job whose enqueue resolved is there",
      violations: missing.map((id) => `job ${id} was enqueued and is not in the store`),
    },
  ];
  for (const { title, sql, say } of CHECKS) {
    const broken = await rows<Record<string, string | number>>(engine, sql);
    verdicts.push({ title, violations: broken.map(say) });
  }
  const inState = (state: number): number => [...states.values()].filter((one) => one === state).length;
  return {
    enqueued: promised.length,
    succeeded: inState(2),
    lost: missing.length + unfinished.length,
    committedTwice: (await rows(engine, TWICE)).length,
    quarantined: inState(5),
    poison: promised.filter((id) => id === POISON_ID).length,
    ledgerRows: await number(engine, "SELECT count(*) AS n FROM ledger"),
    balance: await number(engine, "SELECT sum(balance) AS n FROM accounts"),
    verdicts,
  };
}

export function money(cents: number): string {
  return (cents / 100).toLocaleString("en-US", { minimumFractionDigits: 2 });
}
