{{/* Settings of the operator. */}}

{{- define "promptprefix.operatorEnv" -}}
{{- $accounts := .Values.operator.routerServiceAccounts }}
{{- range include "promptprefix.routerNamespaces" . | fromJsonArray | reverse }}
{{- $accounts = prepend $accounts (printf "%s/promptprefix-router" .) }}
{{- end }}
- name: PROMPTPREFIX_OWN_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: PROMPTPREFIX_IDENTITY
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: PROMPTPREFIX_NAMESPACES
  value: {{ include "promptprefix.namespaces" . | fromJsonArray | join "," | quote }}
- name: PROMPTPREFIX_ROUTER_SERVICE_ACCOUNTS
  value: {{ $accounts | uniq | join "," | quote }}
- name: PROMPTPREFIX_SERVING_NAMES
  value: {{ .Values.operator.servingNames | join "," | quote }}
- name: PROMPTPREFIX_LOG_LEVEL
  value: {{ .Values.operator.logLevel | quote }}
- name: PROMPTPREFIX_RESYNC_SECONDS
  value: {{ .Values.operator.resyncSeconds | quote }}
- name: PROMPTPREFIX_CONNECTED_SECONDS
  value: {{ .Values.operator.connectedSeconds | quote }}
- name: PROMPTPREFIX_CONNECTED_READY_SECONDS
  value: {{ .Values.operator.connectedReadySeconds | quote }}
- name: PROMPTPREFIX_LIMITS
  value: {{ toJson .Values.limits | quote }}
- name: PROMPTPREFIX_VERSION_IDLE_SECONDS
  value: {{ .Values.operator.versionIdleSeconds | int64 | quote }}
- name: PROMPTPREFIX_VERSION_MAX_AGE_SECONDS
  value: {{ .Values.operator.versionMaxAgeSeconds | int64 | quote }}
- name: PROMPTPREFIX_LEASE_SECONDS
  value: {{ .Values.operator.leaseSeconds | quote }}
{{- if .Values.webhook.enabled }}
- name: PROMPTPREFIX_WEBHOOK_CONFIGURATION
  value: {{ include "promptprefix.webhookConfiguration" . }}
- name: PROMPTPREFIX_SIDECAR_IMAGE
  value: {{ include "promptprefix.image" (dict "root" . "image" .Values.webhook.sidecar.image) }}
- name: PROMPTPREFIX_PLUGIN_IMAGE
  value: {{ include "promptprefix.image" (dict "root" . "image" .Values.webhook.plugin.image) }}
- name: PROMPTPREFIX_IMAGE_PULL_POLICY
  value: {{ .Values.imagePullPolicy }}
- name: PROMPTPREFIX_CONTROL_URL
  value: {{ include "promptprefix.controlUrl" . }}
- name: PROMPTPREFIX_SIDECAR_RESOURCES
  value: {{ toJson .Values.webhook.sidecar.resources | quote }}
- name: PROMPTPREFIX_SIDECAR_RUN_AS_USER
  value: {{ with .Values.webhook.sidecar.runAsUser }}{{ int64 . | quote }}{{ else }}""{{ end }}
- name: PROMPTPREFIX_SIDECAR_READY_TIMEOUT_S
  value: {{ .Values.webhook.sidecar.readyTimeoutSeconds | quote }}
- name: PROMPTPREFIX_SIDECAR_WARM_CHUNK_TOKENS
  value: {{ .Values.webhook.sidecar.warmChunkTokens | int64 | quote }}
{{- if include "promptprefix.certManager" . }}
- name: PROMPTPREFIX_WEBHOOK_CERT_FILE
  value: /run/promptprefix/webhook/tls.crt
- name: PROMPTPREFIX_WEBHOOK_KEY_FILE
  value: /run/promptprefix/webhook/tls.key
{{- end }}
{{- end }}
{{- end }}
