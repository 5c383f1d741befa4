-- Prelude: jobs that are held until a worker comes that knows their task, or has their key.
--
-- Needs _frame, _job. Beside the set of held tokens, a second set is ordered by task, then as ranks are, so that a worker
-- finds what it knows without reading the rest. The error of a held job says since when it is held, and for which task.

-- ms: a hundred years.
local FOR_EVER = 3153600000000

local function held_member(name, start, tail, token)
  return name .. '\0' .. string.format('%016.0f', rank_of(priority_of(tail), start)) .. '\0' .. token
end

local function split_member(member)
  return member:match('^(%Z*)%z%Z*%z(%Z*)$')
end

-- The key that a job is held for, from the name that it is held under; nil: it is held for something else.
local function key_named(name)
  return name:match('^key (....)$')
end

-- The key that a payload of ours is signed with; nil where a codec hides it.
local function key_of(payload)
  return payload and payload:sub(1, 160):match('","mac":".(....)')
end

local function held_error(name, why, now_ms, since_ms)
  return cjson.encode({ kind = 'task', error = why, task = name, at = since_ms or now_ms, held = since_ms })
end

-- Since when a job is held; also after a worker that does not know its task has taken it; nil: it never was. The text
-- cannot stand inside another text of the JSON, where its quotes would be escaped.
local function held_since(text)
  return tonumber(text and text:match('"held":(%d+)'))
end

-- The task of a held job, and why it is held. Both are text, whatever somebody else has written.
local function read_held(text)
  local is_json, body = pcall(cjson.decode, text or '')
  if not is_json or type(body) ~= 'table' then body = {} end
  return tostring(body.task or ''), tostring(body.error or 'its task is unknown')
end
