-- The tables of a history. The comments become part of the file: sqlite3 FILE .schema shows them. They hold no semicolon,
-- at which statements end. Scores and rewards are fractions, times ISO 8601 in UTC, durations seconds, yes and no 1 and 0.

CREATE TABLE meta (  -- what kind of file this is
    key TEXT PRIMARY KEY,  -- schema_version or schema_hash
    value TEXT NOT NULL  -- the version, and the hash, of these tables
) WITHOUT ROWID;

CREATE TABLE models (  -- each model that a run or a proxy has
    id INTEGER PRIMARY KEY,  -- number within the file
    name TEXT NOT NULL UNIQUE  -- the model's id
);

CREATE TABLE datasets (  -- each dataset that a run has
    id INTEGER PRIMARY KEY,  -- number within the file
    name TEXT NOT NULL,  -- for tasks without a dataset, the name of their folder
    version TEXT,  -- as in run.json
    source TEXT,  -- as in run.json (for tasks without a dataset, their folder or bundled)
    url TEXT,  -- repository
    "commit" TEXT,  -- commit of the repository
    digest TEXT,  -- published digest of the whole dataset
    tasks INTEGER  -- number of all its tasks
);

CREATE TABLE runs (  -- one row per run
    id INTEGER PRIMARY KEY,  -- number within the file (it does not change)
    path TEXT NOT NULL UNIQUE,  -- run directory, relative to the index's folder if inside
    name TEXT NOT NULL,  -- name of the run
    model_id INTEGER REFERENCES models (id),  -- in models
    dataset_id INTEGER REFERENCES datasets (id),  -- in datasets
    agent TEXT,  -- as in run.json
    fingerprint TEXT NOT NULL,  -- hash of all settings that may move a score, without model and tasks (equal in one series)
    plan TEXT NOT NULL,  -- hash of the planned tasks and their content
    imported INTEGER NOT NULL,  -- 1 for results of other programs
    purpose TEXT NOT NULL,  -- score, or debug or fork for runs that have none
    status TEXT,  -- as in run.json (NULL for bare results)
    stopped TEXT,  -- why the run stopped by itself
    tbench_version TEXT,  -- as in run.json
    begun_at TEXT,  -- for bare results, when the first trial began
    ended_at TEXT,  -- for bare results, when the last trial ended
    wall_sec REAL,  -- from begun_at to ended_at, pauses included
    seeds TEXT NOT NULL,  -- planned seeds, a JSON list
    tasks INTEGER NOT NULL,  -- number of planned tasks
    planned INTEGER NOT NULL,  -- planned trials
    scored INTEGER NOT NULL,  -- trials with a verdict
    solved INTEGER NOT NULL,  -- trials with a reward of 1 or more
    errors INTEGER NOT NULL,  -- trials that ended without a verdict
    missing INTEGER NOT NULL,  -- trials without a result
    other_attempts INTEGER NOT NULL,  -- results of attempts that do not count
    unplanned INTEGER NOT NULL,  -- results of trials that were not planned
    human_touched INTEGER NOT NULL,  -- trials in which a person intervened
    went_on TEXT NOT NULL,  -- trials that went on after a cut, and how many of them by replay, JSON
    flagged INTEGER NOT NULL,  -- trials with a strong sign of tampering
    weakly_flagged INTEGER NOT NULL,  -- trials with only weak signs of tampering
    unconfirmed INTEGER NOT NULL,  -- passes that no fresh container has confirmed
    repaired INTEGER NOT NULL,  -- trials that were repaired before the verifier ran
    regraded INTEGER NOT NULL,  -- trials whose verifier ran again
    remarked INTEGER NOT NULL,  -- trials whose reward is doubtful, but counts
    score REAL,  -- mean, unscored trials as 0 (NULL without any verdict)
    score_std REAL,  -- sample standard deviation of the per-seed scores
    score_se REAL,  -- standard error over tasks
    per_seed TEXT,  -- score of each seed, a JSON list
    scored_per_seed TEXT,  -- verdicts at each seed, a JSON list
    completed TEXT,  -- score over the seeds at which every task has a verdict, a JSON object
    scored_only REAL,  -- score over trials with a verdict
    scored_only_std REAL,  -- its standard deviation over seeds
    worst REAL,  -- score with every trial without a verdict as 0
    best REAL,  -- score with every trial without a verdict as 1
    expected_std REAL,  -- standard deviation if seeds were paired at random
    solved_rate REAL,  -- solved / planned trials
    pass_at_k TEXT,  -- by k, a JSON object
    pass_hat_k TEXT,  -- pass^k by k, a JSON object
    prompt_tokens INTEGER NOT NULL,  -- of all trials that count
    completion_tokens INTEGER NOT NULL,  -- of all trials that count
    cached_tokens INTEGER,  -- prompt tokens from the prefix cache (NULL if unknown)
    uncounted INTEGER NOT NULL,  -- replies without token counts: the sums lack them
    model_sec REAL,  -- waiting for replies, all trials that count
    waiting_sec REAL,  -- waiting for an endpoint or engine that was away
    command_sec REAL,  -- typing and waiting for the terminal
    verifier_sec REAL,  -- verifiers
    sandbox_sec REAL,  -- images, containers, healthchecks
    teardown_sec REAL,  -- removing containers
    other_sec REAL,  -- all other time of the trials
    total_sec REAL,  -- the sum of the seven before
    queue_sec REAL,  -- waiting for cpus and memory
    metrics TEXT NOT NULL,  -- numbers beside the reward, JSON
    outcomes TEXT NOT NULL,  -- trials by outcome, a JSON object
    error_groups TEXT NOT NULL,  -- as errors of tbench summary --json
    flags TEXT NOT NULL,  -- trials with signs of tampering, JSON
    overrides TEXT NOT NULL,  -- settings that replaced the tasks' own, JSON
    cost TEXT,  -- as cost of tbench summary --json, with the prices that are stored with the run (NULL without any)
    broken_rules TEXT NOT NULL,  -- leaderboard rules that the run breaks, JSON
    notes TEXT NOT NULL  -- problems met while reading the run, JSON
);
CREATE INDEX runs_by_begin ON runs (begun_at);
CREATE INDEX runs_by_model ON runs (model_id, score);

CREATE TABLE tasks (  -- one row per planned task of a run
    run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,  -- in runs
    task TEXT NOT NULL,  -- name of the task
    position INTEGER NOT NULL,  -- in the plan, from 0
    hash TEXT,  -- hash of the task's content (NULL if unknown)
    mean_reward REAL,  -- over all planned seeds, unscored trials as 0 (NULL without any verdict)
    scored INTEGER NOT NULL,  -- trials with a verdict
    solved INTEGER NOT NULL,  -- trials with a reward of 1 or more
    mean_steps REAL,  -- over the trials that have ended
    mean_wall_sec REAL,  -- over the trials that have ended
    PRIMARY KEY (run_id, task)
) WITHOUT ROWID;
CREATE INDEX tasks_by_name ON tasks (task, run_id);
CREATE INDEX tasks_by_hash ON tasks (hash, task);

CREATE TABLE trials (  -- one row per planned trial that has ended: the attempt that counts
    run_id INTEGER NOT NULL,  -- in runs
    task TEXT NOT NULL,  -- name of the task
    seed INTEGER NOT NULL,  -- seed of the trial
    trial TEXT NOT NULL,  -- id of the trial
    attempt INTEGER NOT NULL,  -- the attempt that counts
    status TEXT NOT NULL,  -- pass, partial, fail or error
    reward REAL,  -- NULL without a verdict
    reward_all_steps REAL,  -- the reward with 0 for steps of the task that never began
    error_stage TEXT,  -- where the error happened
    error TEXT,  -- type of the error (NoVerdict if unknown)
    error_blame TEXT,  -- whose fault the error is
    outcome TEXT,  -- how the agent ended
    steps INTEGER NOT NULL,  -- replies of the model
    prompt_tokens INTEGER NOT NULL,  -- as the endpoint counted them
    completion_tokens INTEGER NOT NULL,  -- as the endpoint counted them
    cached_tokens INTEGER,  -- prompt tokens from the prefix cache (NULL if unknown)
    uncounted INTEGER NOT NULL,  -- replies without token counts
    wall_sec REAL,  -- without the queue
    model_sec REAL,  -- waiting for replies
    agent_sec REAL,  -- the whole agent
    started_at TEXT,  -- of the attempt
    finished_at TEXT,  -- of the attempt
    human_touched INTEGER NOT NULL,  -- 1 if a person intervened
    out_of_memory INTEGER NOT NULL,  -- 1 if a process was killed because memory ran out
    cost REAL,  -- price of the attempt's tokens (NULL without prices)
    tags TEXT,  -- tags that people gave the trial or its task, a JSON list (NULL for none)
    notes TEXT,  -- what people noted about the trial or its task, JSON (NULL for none)
    tamper TEXT,  -- signs of tampering, a JSON list (NULL for none)
    metrics TEXT,  -- numbers by name, a JSON object (NULL for none)
    PRIMARY KEY (run_id, task, seed),
    FOREIGN KEY (run_id, task) REFERENCES tasks (run_id, task) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE proxies (  -- one row per replay or extraction
    id INTEGER PRIMARY KEY,  -- number within the file
    path TEXT NOT NULL UNIQUE,  -- as in runs
    name TEXT NOT NULL,  -- name of its directory
    kind TEXT NOT NULL,  -- replay or extraction
    model_id INTEGER REFERENCES models (id),  -- in models
    measure TEXT NOT NULL,  -- key of the score in result.json
    score REAL,  -- published score (NULL before it is scored)
    planned INTEGER,  -- steps or replies asked for
    answered INTEGER,  -- steps or replies that came
    metric_revision TEXT,  -- scores are comparable if this is equal
    data TEXT,  -- hash of the data asked about, has to be equal, too
    protocol TEXT,  -- has to be equal, too
    begun_at TEXT,  -- as in runs
    tbench_version TEXT,  -- as in runs
    figures TEXT NOT NULL  -- further figures of its result, a JSON object
);

CREATE TABLE directories (  -- what an update compares the folders with, empty in an export
    path TEXT PRIMARY KEY,  -- as in runs and proxies
    device INTEGER NOT NULL,  -- number of its file system
    stamp TEXT NOT NULL,  -- sizes and times of its files
    problem TEXT  -- why it could not be read
) WITHOUT ROWID;
